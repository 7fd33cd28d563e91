// What gradient_norm.cpp asks of the CUDA code, in a build without it of no_cuda.cpp. Internal.
#pragma once

#include "framework/parameter_buckets.h"

namespace evenkeel::cuda {

void add_squared_gradient_norm(const ParameterBuckets& buckets, const Tensor& total);

}  // namespace evenkeel::cuda
