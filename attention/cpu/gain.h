// The CPU back end of gain.h. Arguments have been checked, and there is work. Each number of the
// parameter makes as many neighbours of gain as it fits into it.
#pragma once

#include "attention/gain_rule.h"
#include "framework/tensor.h"

namespace evenkeel::cpu {

void effective_gain(const Tensor& parameter, const GainRule& rule, const Tensor& gain);
void add_gain_gradient(const Tensor& dgain,
                       const Tensor& parameter,
                       const GainRule& rule,
                       const Tensor& dparameter);

}  // namespace evenkeel::cpu
