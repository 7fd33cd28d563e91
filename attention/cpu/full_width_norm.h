// The CPU back end of full_width_norm.h.
#pragma once

#include "framework/tensor.h"

namespace evenkeel::cpu {

// totals [2, B, T] fp32, contiguous, in place: x factors[part], or, with eps >= 0, 1 / sqrt(x factors[part] + eps).
void finish_full_width(const Tensor& totals, const float (&factors)[2], float eps);

}  // namespace evenkeel::cpu
