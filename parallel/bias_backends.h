// The back ends of bias.h: rows is [N, O] with contiguous rows, arguments have been checked, none is empty.
// Internal.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {
namespace cpu {

void add_bias(const Tensor& rows, const Tensor& bias);
void add_bias_gradient(const Tensor& rows, const Tensor& grad);

}  // namespace cpu

namespace cuda {

// rows: bf16.
void add_bias(const Tensor& rows, const Tensor& bias);
void add_bias_gradient(const Tensor& rows, const Tensor& grad);

}  // namespace cuda
}  // namespace evenkeel
