// The part of a gradient's norm that one rank holds.
#pragma once

#include "framework/parameter_buckets.h"

namespace evenkeel {

// Adds to `total` [1] fp64, on the buckets' device, the sum of squares of all gradient elements that this
// rank owns, each chunk and then the chunks' sums in double and in order: the same bits for any number of
// threads. Waits for nothing on CUDA.
void add_squared_gradient_norm(const ParameterBuckets& buckets, const Tensor& total);

}  // namespace evenkeel
