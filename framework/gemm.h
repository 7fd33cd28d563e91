// Matrix products, accumulated in fp32. On the CPU by oneDNN, on CUDA by cuBLASLt.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {

struct GemmOptions {
    bool transpose_a = false;  // use a^T
    bool transpose_b = false;  // use b^T
    bool accumulate = false;   // c += instead of c =; c must be fp32
};

// c = op(a) op(b), with op(a) [M, K] and op(b) [K, N]; c [M, N].
// All three are on one device, rank 2, with contiguous rows (any row stride). a and b share one type, fp32 or bf16; c is
// either. An empty inner dimension gives zeros. Aliasing c with a or b is not allowed.
// The result does not depend on the number of threads. On CUDA it is the same each time on GPUs of one
// kind, for operands of the same shapes, strides and alignment; a graph that holds products must have run
// each of them once before it is captured, and runs on the stream on which it was captured.
void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& options = {});

}  // namespace evenkeel
