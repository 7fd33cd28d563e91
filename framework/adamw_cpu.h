// What adamw.cpp asks of the CPU code.
#pragma once

#include "framework/parameter.h"

namespace evenkeel {

// Everything of a step that is the same for all elements, worked out in double and rounded once.
struct AdamWScalars {
    float grad_scale;
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float step_size;   // lr / (1 - beta1^step)
    float root_scale;  // 1 / sqrt(1 - beta2^step)
    float epsilon;
    float decay;  // lr * weight_decay
};

namespace cpu {

void adamw_step(const ParameterList& parameters, const AdamWScalars& scalars);

}  // namespace cpu
}  // namespace evenkeel
