// Whether two tensors share memory: what an operation may not read and write.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {

// Exact for strides of the same nest, as slices of one tensor have; where strides differ, sharing
// the first element counts.
bool overlap(const Tensor& a, const Tensor& b);

}  // namespace evenkeel
