// What gradient_norm.cpp asks of the CPU code.
#pragma once

#include "framework/optimizer/gradient_norm.h"

namespace evenkeel::cpu {

void add_squared_gradient_norm(const ParameterBuckets& buckets, const Tensor& total);

}  // namespace evenkeel::cpu
