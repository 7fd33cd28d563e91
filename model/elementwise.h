// The element-wise operations of a decoder block. fp32 or bf16 storage, fp32 arithmetic, one rounding.
//
// N rows (tokens), C width, F feed-forward width on this rank.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {

// y = gain * x / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019, eq. 4). x, y [.., C]; gain [C] fp32 or
// x's type; rstd [N] fp32, kept for backward.
void rms_norm_forward(
    const Tensor& x, const Tensor& gain, double eps, const Tensor& y, const Tensor& rstd);
// dx from dy; dgain [C] fp32 is added to. accumulate: dx += instead of =. Fixed order of summation.
void rms_norm_backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& gain,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx,
                       const Tensor& dgain);

// SwiGLU (Shazeer 2020, eq. 6): y = silu(gate) * up; gate_up [.., 2F] holds gate then up; y [.., F].
void swiglu_forward(const Tensor& gate_up, const Tensor& y);
void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);

// GELU (Hendrycks and Gimpel 2016), the exact form x Phi(x).
void gelu_forward(const Tensor& x, const Tensor& y);
void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx);

// y += x, same shapes.
void add_in_place(const Tensor& y, const Tensor& x);

}  // namespace evenkeel
