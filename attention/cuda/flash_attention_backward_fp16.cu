#include "attention/cuda/flash_attention_backward.cuh"

namespace evenkeel::cuda {

void flash_backward_fp16(const FlashBackwardProblem& problem, std::int64_t head_dim) {
    launch_flash_backward<__half>(problem, head_dim);
}

}  // namespace evenkeel::cuda
