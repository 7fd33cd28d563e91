#include "attention/cuda/flash_attention_forward.cuh"

namespace evenkeel::cuda {

void flash_forward_128_256(const FlashProblem& problem,
                           const ForwardPartials& partials,
                           std::int64_t head_dim,
                           DType dtype) {
    launch_flash_forward<128, 256>(problem, partials, head_dim, dtype);
}

}  // namespace evenkeel::cuda
