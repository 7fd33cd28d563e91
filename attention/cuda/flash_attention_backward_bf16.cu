#include "attention/cuda/flash_attention_backward.cuh"

namespace evenkeel::cuda {

void flash_backward_bf16(const FlashBackwardProblem& problem, std::int64_t head_dim) {
    launch_flash_backward<__nv_bfloat16>(problem, head_dim);
}

}  // namespace evenkeel::cuda
