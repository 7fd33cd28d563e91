// What gradient_norm.cpp asks of the CPU code.
#pragma once

#include "framework/optimizer/gradient_norm.h"

namespace evenkeel::cpu {

void chunk_sums_of_squares(const ParameterBuckets& buckets, const Tensor& sums);
void add_in_order(const Tensor& sums, const Tensor& total);

}  // namespace evenkeel::cpu
