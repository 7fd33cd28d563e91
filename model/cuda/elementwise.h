// The CUDA back end of model/ops/elementwise.h and finite_probe.h: arguments have been checked,
// and none is empty.
#pragma once

#include "framework/tensor.h"

namespace evenkeel::cuda {

void rms_norm_forward(const Tensor& x,
                      const Tensor& gain,
                      double eps,
                      const Tensor& y,
                      const Tensor& rstd,
                      double gain_offset);
void rms_norm_backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& gain,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx,
                       const Tensor& dgain,
                       double gain_offset);
void layer_norm_forward(const Tensor& x,
                        const Tensor& gain,
                        const Tensor& bias,
                        double eps,
                        const Tensor& y,
                        const Tensor& statistics,
                        double gain_offset);
void layer_norm_backward(const Tensor& dy,
                         const Tensor& x,
                         const Tensor& gain,
                         const Tensor& statistics,
                         bool accumulate,
                         const Tensor& dx,
                         const Tensor& dgain,
                         const Tensor& dbias,
                         double gain_offset);
void swiglu_forward(const Tensor& gate_up, const Tensor& y);
void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);
void geglu_forward(const Tensor& gate_up, const Tensor& y);
void geglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);
void gelu_forward(const Tensor& x, const Tensor& y);
void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx);
void add_in_place(const Tensor& y, const Tensor& x);
void scale_in_place(const Tensor& y, double factor);

// Of a contiguous tensor of floats. The host waits.
bool all_finite(const Tensor& tensor);

}  // namespace evenkeel::cuda
