// What a plan may use of a GPU's memory: one number for training's advice, scale plan, search and run.
#pragma once

#include <cstddef>

namespace evenkeel {

// All but a reserve for CUDA's context, loaded kernels, NCCL's buffers and fragments: 6 GiB, of a GPU of less than 48 GiB
// an eighth. Not measured yet.
std::size_t usable_memory(std::size_t gpu_bytes);

}  // namespace evenkeel
