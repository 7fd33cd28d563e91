// The element-wise operations of a decoder block. fp32 or bf16 storage, fp32 arithmetic, one rounding. All
// tensors are contiguous; the results do not depend on the number of threads. A wrong shape or type throws
// kInvalidArgument.
//
// N rows (tokens), C width, F feed-forward width on this rank.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {

// y = (gain_offset + gain) * x / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019, eq. 4). x, y [.., C]; gain
// [C] fp32 or x's type; rstd [N] fp32, kept for backward. y may be x where no backward pass follows. Rows whose
// squares over- or underflow in fp32 get their mean in double; a zero row gives zero.
void rms_norm_forward(const Tensor& x,
                      const Tensor& gain,
                      double eps,
                      const Tensor& y,
                      const Tensor& rstd,
                      double gain_offset = 0.0);
// dx from dy; dgain [C] fp32 is added to. accumulate: dx += instead of =; otherwise dx may be dy.
void rms_norm_backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& gain,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx,
                       const Tensor& dgain,
                       double gain_offset = 0.0);

// y = (gain_offset + gain) * (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) + bias (Ba et al. 2016, eq. 4),
// otherwise as above. bias [C] like gain, or undefined: none. statistics [2, N] fp32: the reciprocal root, then
// the mean. A row of equal numbers gives the bias.
void layer_norm_forward(const Tensor& x,
                        const Tensor& gain,
                        const Tensor& bias,
                        double eps,
                        const Tensor& y,
                        const Tensor& statistics,
                        double gain_offset = 0.0);
// dbias [C] fp32 is added to, or undefined: none.
void layer_norm_backward(const Tensor& dy,
                         const Tensor& x,
                         const Tensor& gain,
                         const Tensor& statistics,
                         bool accumulate,
                         const Tensor& dx,
                         const Tensor& dgain,
                         const Tensor& dbias,
                         double gain_offset = 0.0);

// SwiGLU (Shazeer 2020, eq. 6): y = silu(gate) * up; gate_up [.., 2F] holds gate then up; y [.., F].
// dgate_up may be gate_up.
void swiglu_forward(const Tensor& gate_up, const Tensor& y);
void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);

// The same with the tanh form of GELU for silu (Shazeer 2020, eq. 6; Hendrycks and Gimpel 2016, section 2):
//   y = gelu(gate) * up,  gelu(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
void geglu_forward(const Tensor& gate_up, const Tensor& y);
void geglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);

// GELU (Hendrycks and Gimpel 2016), the exact form x Phi(x). y may be x, and dx dy or x.
void gelu_forward(const Tensor& x, const Tensor& y);
void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx);

// y += x, same shapes.
void add_in_place(const Tensor& y, const Tensor& x);

// y *= factor.
void scale_in_place(const Tensor& y, double factor);

}  // namespace evenkeel
