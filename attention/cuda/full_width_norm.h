// The CUDA back end of full_width_norm.h.
#pragma once

#include "framework/tensor.h"

namespace evenkeel::cuda {

// As cpu::finish_full_width; totals is not empty.
void finish_full_width(const Tensor& totals, const float (&factors)[2], float eps);

}  // namespace evenkeel::cuda
