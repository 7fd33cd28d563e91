// The CUDA side of gemm, in a build without it of no_cuda.cpp. Internal.
#pragma once

#include "framework/gemm.h"

struct CUstream_st;

namespace evenkeel::cuda {

// Checked operands, none of them empty. c = op(a) op(b) or c += op(a) op(b).
void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& options);

// Gives back, in the stream's order, what gemm keeps for a stream. To be called before it goes.
void release_gemm_workspace(CUstream_st* stream) noexcept;

}  // namespace evenkeel::cuda
