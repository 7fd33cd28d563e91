// Biases of linear layers, on the CPU and on CUDA; all tensors on one device.
//
// N rows (tokens), O outputs of this rank.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {

// x += bias, in place. x [.., O], fp32 or bf16, last dimension contiguous, rows at any one distance; bias [O]
// fp32. Added in fp32, rounded once to x's type. A wrong shape or type throws kInvalidArgument.
void add_bias(const Tensor& x, const Tensor& bias);

// grad [O] fp32 += the columns of dy (as x above), in a fixed order: runs of rows in fp32, the runs in double.
// The same bits in every run and with any number of threads.
void add_bias_gradient(const Tensor& dy, const Tensor& grad);

}  // namespace evenkeel
