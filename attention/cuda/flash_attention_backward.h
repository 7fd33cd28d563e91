// What the host code and the kernels of the CUDA backward pass agree on. Internal to attention/.
#pragma once

#include "attention/cuda/flash_attention.h"

namespace evenkeel::cuda {

// T rounded up to a multiple of 64.
constexpr std::int64_t padded_queries(std::int64_t queries) { return (queries + 63) / 64 * 64; }

struct FlashBackwardProblem {
    FlashProblem forward;
    FlashRows dout, dq, dk, dv;
    // What backward needs of a row, as [B H][3][padded_queries] of {shift, offset, delta}: with
    // scores s = q k, p = 2^((s - shift) scale_log2 + offset) and ds = p (dp - delta). As a rule
    // shift is lse / scale, and offset its rounding; where lse is too large for that, shift is the
    // row's maximum and offset minus the logarithm of its sum, found anew.
    float* rows;
    int padded_queries;
};

// One for each storage type: they compile side by side.
void flash_backward_bf16(const FlashBackwardProblem& problem, std::int64_t head_dim);
void flash_backward_fp16(const FlashBackwardProblem& problem, std::int64_t head_dim);

}  // namespace evenkeel::cuda
