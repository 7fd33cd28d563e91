// The CUDA back end of model/ops/gain_rules.h: arguments have been checked, and none is empty.
#pragma once

#include "model/ops/gain_rules.h"

namespace evenkeel::cuda {

void advance_anneal(float steps, bool advance, const Tensor& done, const Tensor& lambda);
// starts on the device; null with pull 0.
void hold_gains(const GainLimits& limits,
                const float* q_start,
                const float* k_start,
                const Tensor& q,
                const Tensor& k);

}  // namespace evenkeel::cuda
