// Sums over all heads and channels of a token, for statistics that span heads.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {

// out[b, t] = sum over heads n and channels c of x[b, t, n, c] y[b, t, n, c], in fp32, in an order that
// depends on the shape alone. x and y [B, T, N, D] of one type (CPU: fp32 or bf16; CUDA: fp32, bf16 or
// fp16, rows aligned to 16 bytes), any strides with contiguous rows of D; may be the same tensor. out [B, T]
// fp32, contiguous; overwritten; other memory. The products overflow beyond 1e19 in magnitude: then
// infinite.
void token_dots(const Tensor& x, const Tensor& y, const Tensor& out);

}  // namespace evenkeel
