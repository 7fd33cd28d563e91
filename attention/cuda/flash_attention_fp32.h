// Flash attention in fp32 on a GPU: its kernels as the host sees them. Internal to attention/.
#pragma once

#include "attention/cuda/flash_attention_backward.h"
#include "attention/cuda/flash_attention_forward.h"

namespace evenkeel::cuda {

// `logit_scale`: of scores (FlashProblem) to logits, the softmax scale or the softcap. head_dim one of
// 64, 96, 128, 256.
void flash_forward_fp32(const FlashProblem& problem,
                        const ForwardPartials& partials,
                        std::int64_t head_dim,
                        float logit_scale);
void flash_backward_fp32(const FlashBackwardProblem& problem,
                         std::int64_t head_dim,
                         float logit_scale);

}  // namespace evenkeel::cuda
