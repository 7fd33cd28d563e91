// The CUDA back end of qk_norm_rope.h. Arguments have been checked, there are 1 or 2 parts, and
// B * T is not 0.
#pragma once

#include <span>

#include "attention/qk_norm_rope.h"

namespace evenkeel::cuda {

void qk_norm_rope_forward(std::span<const QkNormRopePart> parts,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options);
void qk_norm_rope_backward(std::span<const QkNormRopeGradientPart> parts,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options);

}  // namespace evenkeel::cuda
