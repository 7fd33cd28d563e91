// What gradient_norm.cpp asks of the CUDA code, in a build without it of no_cuda.cpp. Internal.
#pragma once

#include "framework/parameter_buckets.h"

namespace evenkeel::cuda {

void chunk_sums_of_squares(const ParameterBuckets& buckets, const Tensor& sums);
void add_in_order(const Tensor& sums, const Tensor& total);

}  // namespace evenkeel::cuda
