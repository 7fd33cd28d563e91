// The mask of packed documents as attention's kernels read it.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel::cuda {

// [2, T] int32 on the device: begin and end of each token's document. Boundaries ascend from 0 to T;
// they travel as arguments of kernels on the current stream, so the host does not wait.
Tensor document_bounds(const std::vector<std::int32_t>& cu_seqlens);

}  // namespace evenkeel::cuda
