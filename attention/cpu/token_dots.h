// The CPU back end of token_dots.h. Arguments have been checked, and there is work.
#pragma once

#include "framework/tensor.h"

namespace evenkeel::cpu {

void token_dots(const Tensor& x, const Tensor& y, const Tensor& out);

}  // namespace evenkeel::cpu
