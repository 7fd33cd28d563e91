// The CPU back end of qk_norm_rope.h: arguments have been checked.
#pragma once

#include "attention/qk_norm_rope.h"

namespace evenkeel::cpu {

void qk_norm_rope_forward(const Tensor& x,
                          const Tensor& gain,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options,
                          const Tensor& y,
                          const Tensor& rstd);
void qk_norm_rope_backward(const Tensor& dy,
                           const Tensor& x,
                           const Tensor& gain,
                           const Tensor& rstd,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options,
                           const Tensor& dx,
                           const Tensor& dgain,
                           const Tensor& mean);

}  // namespace evenkeel::cpu
