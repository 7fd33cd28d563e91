// The step of a hidden state towards what a layer suggests, on the unit sphere (Loshchilov et al. 2024, nGPT,
// eqs. 10 and 11):
//
//   y = Norm(h + alpha (Norm(a) - h)),   Norm(x) = x / |x|,   alpha_c = |parameter_c| factor
//
// with a learning rate alpha for each channel. A row of zeros stays one under Norm. fp32 or bf16 storage, fp32
// arithmetic, one rounding. All tensors are contiguous, on one device; nothing waits on CUDA; the results do
// not depend on the number of threads. A wrong shape or type throws kInvalidArgument.
//
// N rows (tokens), C width.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {

// h, a, y [.., C] of one type; parameter [C] fp32; inverse [N, 2] fp32 gets 1 / |a| and 1 / |h + ..|, for
// backward. y may be a or h where no backward pass follows.
void normalized_update_forward(const Tensor& h,
                               const Tensor& a,
                               const Tensor& parameter,
                               double factor,
                               const Tensor& y,
                               const Tensor& inverse);
// dh and da from dy; dparameter [C] fp32 is added to. dh may be dy.
void normalized_update_backward(const Tensor& dy,
                                const Tensor& h,
                                const Tensor& a,
                                const Tensor& parameter,
                                double factor,
                                const Tensor& inverse,
                                const Tensor& dh,
                                const Tensor& da,
                                const Tensor& dparameter);

}  // namespace evenkeel
