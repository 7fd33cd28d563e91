// normalized_update.h on each device, with checked arguments and at least one element.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {
namespace cpu {
void normalized_update_forward(const Tensor& h,
                               const Tensor& a,
                               const Tensor& parameter,
                               float factor,
                               const Tensor& y,
                               const Tensor& inverse);
void normalized_update_backward(const Tensor& dy,
                                const Tensor& h,
                                const Tensor& a,
                                const Tensor& parameter,
                                float factor,
                                const Tensor& inverse,
                                const Tensor& dh,
                                const Tensor& da,
                                const Tensor& dparameter);
}  // namespace cpu
namespace cuda {
void normalized_update_forward(const Tensor& h,
                               const Tensor& a,
                               const Tensor& parameter,
                               float factor,
                               const Tensor& y,
                               const Tensor& inverse);
void normalized_update_backward(const Tensor& dy,
                                const Tensor& h,
                                const Tensor& a,
                                const Tensor& parameter,
                                float factor,
                                const Tensor& inverse,
                                const Tensor& dh,
                                const Tensor& da,
                                const Tensor& dparameter);
}  // namespace cuda
}  // namespace evenkeel
