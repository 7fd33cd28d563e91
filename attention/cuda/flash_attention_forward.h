// What the host code and the kernels of the CUDA forward pass agree on. Internal to attention/.
#pragma once

#include "attention/cuda/flash_attention.h"

namespace evenkeel::cuda {

// Queries that a block takes.
constexpr int forward_rows(std::int64_t head_dim, DType dtype) {
    return dtype == DType::kFloat32 ? 16 : head_dim == 256 ? 64 : 128;
}

// What the telemetry sums up: of each head, batch and tile of rows ([H][B][tiles]).
struct ForwardPartials {
    float* max_score;  // of q k; null without telemetry
    float* entropy;    // sum over rows, in nats
    // The same of its share of ln(keys in sight), where these are two or more.
    float* entropy_share;
    std::int32_t* rows;         // that see a key
    std::int32_t* rows_of_two;  // with two keys or more in sight
    std::int32_t* saturated;    // of these, those with a probability that is 1 in bf16

    static constexpr int kFloats = 3, kCounts = 3;
    static constexpr std::size_t kBytes = 4 * (kFloats + kCounts);  // of a tile
};

// One source file for each two of head_dim: they compile side by side.
void flash_forward_64_96(const FlashProblem& problem,
                         const ForwardPartials& partials,
                         std::int64_t head_dim,
                         DType dtype);
void flash_forward_128_256(const FlashProblem& problem,
                           const ForwardPartials& partials,
                           std::int64_t head_dim,
                           DType dtype);

// Per head, from the `count` partial results of each, in a fixed order. softcap: 0 where there is
// none.
void reduce_forward_partials(const FlashProblem& problem,
                             double softcap,
                             const ForwardPartials& partials,
                             std::int64_t count,
                             const AttentionStats& stats);

}  // namespace evenkeel::cuda
