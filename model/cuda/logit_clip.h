// The CUDA back end of model/ops/logit_clip.h: arguments have been checked, and none is empty.
#pragma once

#include "framework/tensor.h"

namespace evenkeel::cuda {

void take_maximum(const Tensor& highest, const Tensor& now);
void group_maximum(const Tensor& max_logit, const Tensor& groups);
// value may be master.
void clip_heads(const Tensor& maximum,
                float threshold,
                float offset,
                const Tensor& master,
                const Tensor& value);

void count_clipped(const Tensor& maximum, float threshold, const Tensor& counts);

}  // namespace evenkeel::cuda
