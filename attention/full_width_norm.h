// RMSNorm over the full width of q and of k: one statistic for all heads of a token (OLMo Team 2024, OLMo 2,
// section 3.3.2), whichever ranks hold them. One sum over tensor-parallel ranks forward and one backward, of a
// number a token for each of q and k; the rest is qk_norm_rope with token_statistic.
//
// B batch, T positions, H query heads, K key/value heads, D head width, P tensor-parallel size, R = P/K where P > K
// (each key head lives on R ranks) and 1 elsewhere.
#pragma once

#include "framework/tensor.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// [2, B, T] fp32: of q [B, T, H/P, D], then of k [B, T, K/P, D] (one head where P > K),
//   1 / sqrt(sum over all heads and channels of x^2 / (N D) + eps),  N = H or K.
// Heads of more than one rank count once. num_heads and num_kv_heads are H and K. Squares that overflow
// fp32 (beyond 1e19) make the row zero. Collective over the TP group; waits for nothing on CUDA.
Tensor full_width_rstd(const ProcessGrid& grid,
                       const Tensor& q,
                       const Tensor& k,
                       std::int64_t num_heads,
                       std::int64_t num_kv_heads,
                       double eps);

// [2, B, T] fp32: what QkNormRopeGradientPart::mean is for q and for k, from the results of forward, q and k,
// and their gradients. With z = R_t^T dy and y = R_t(gain u), gain z u summed over a token is dy . y:
//   mean = sum over all heads and channels of dy y / (N D),  over R in addition for k,
// whose gradients are sums over the ranks that hold it: each takes off its share. q and k rounded to their storage
// type take part in place of exact ones. Collective over the TP group; waits for nothing on CUDA.
Tensor full_width_mean(const ProcessGrid& grid,
                       const Tensor& dq,
                       const Tensor& q,
                       const Tensor& dk,
                       const Tensor& k,
                       std::int64_t num_heads,
                       std::int64_t num_kv_heads);

}  // namespace evenkeel
