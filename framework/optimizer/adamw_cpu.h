// What adamw.cpp asks of the CPU code. Internal.
#pragma once

#include "framework/optimizer/adamw_scalars.h"
#include "framework/parameter_buckets.h"

namespace evenkeel::cpu {

void adamw_step(const ParameterBuckets& buckets, const AdamWScalars& scalars, float grad_scale);

}  // namespace evenkeel::cpu
