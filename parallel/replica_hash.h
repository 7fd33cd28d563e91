// The hash of replica_check.h on a GPU. Internal.
#pragma once

#include <cstdint>

#include "framework/tensor.h"

namespace evenkeel::cuda {

// Adds the tensor's hash_elements() to *sum, which is on the GPU.
void add_hash(const Tensor& tensor, std::int64_t first, std::uint64_t* sum);

}  // namespace evenkeel::cuda
