// What adamw.cpp asks of the CUDA code, in a build without it of no_cuda.cpp. Internal.
#pragma once

#include "framework/optimizer/adamw.h"
#include "framework/optimizer/adamw_scalars.h"
#include "framework/parameter_buckets.h"

namespace evenkeel::cuda {

// One launch a bucket. Reads loss and squared norm on the device: see adamw.h.
void adamw_step(const ParameterBuckets& buckets,
                const AdamWScalars& scalars,
                double clip_norm,
                const UpdateLimits& limits,
                const Tensor& numbers);

}  // namespace evenkeel::cuda
