// The part of a gradient's norm that one rank counts.
#pragma once

#include "framework/parameter_buckets.h"

namespace evenkeel {

// Sets `sums` [buckets.num_chunks()] fp64, on the buckets' device, to the sums of squares of the chunks of gradients
// that this rank counts, in double; zero for those that others do. Where buckets are cut, the ranks' sums added up
// are all chunks', to the bit. Waits for nothing on CUDA.
void chunk_sums_of_squares(const ParameterBuckets& buckets, const Tensor& sums);

// Adds those to `total` [1] fp64 on the same device, in double and in an order that depends on their number alone: the
// same bits for any number of threads. Waits for nothing on CUDA.
void add_in_order(const Tensor& sums, const Tensor& total);

// Both: adds the sum of squares of all gradient elements that this rank counts.
void add_squared_gradient_norm(const ParameterBuckets& buckets, const Tensor& total);

}  // namespace evenkeel
