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
    // scores s (FlashProblem) p = 2^((s - shift) scale_log2 + offset), ds = p (dp - delta). As a rule
    // shift is lse in scores and offset its rounding; where lse is too large for that, shift is the
    // row's maximum and offset minus the logarithm of its sum, found anew.
    // The fp32 kernels keep {shift, weight, delta}: p = e^((s - shift) logit_scale) weight.
    float* rows;
    int padded_queries;
    // Sums over 16 rows of e^(sink - lse) delta, as [H][B][sink_shares()]. Null: not wanted.
    float* sink_shares;
};

// Of a sequence: 4 warps for every 64 rows.
constexpr std::int64_t sink_shares(std::int64_t queries) { return padded_queries(queries) / 16; }

// dsink[h] -= sum of the `count` shares of head h, in a fixed order.
void reduce_sink_gradient(const float* shares,
                          std::int64_t heads,
                          std::int64_t count,
                          float* dsink);

// One for each storage type: they compile side by side.
void flash_backward_bf16(const FlashBackwardProblem& problem, std::int64_t head_dim);
void flash_backward_fp16(const FlashBackwardProblem& problem, std::int64_t head_dim);

}  // namespace evenkeel::cuda
