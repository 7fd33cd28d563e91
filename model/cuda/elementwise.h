// The CUDA back end of model/elementwise.h and finite_probe.h: arguments have been checked,
// and none is empty.
#pragma once

#include "framework/tensor.h"

namespace evenkeel::cuda {

void rms_norm_forward(
    const Tensor& x, const Tensor& gain, double eps, const Tensor& y, const Tensor& rstd);
void rms_norm_backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& gain,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx,
                       const Tensor& dgain);
void swiglu_forward(const Tensor& gate_up, const Tensor& y);
void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);
void gelu_forward(const Tensor& x, const Tensor& y);
void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx);
void add_in_place(const Tensor& y, const Tensor& x);

// Of a contiguous tensor of floats. The host waits.
bool all_finite(const Tensor& tensor);

}  // namespace evenkeel::cuda
