// Rows of a matrix and its bias, compiled once per instruction set. Plain data only: see
// cmake/EvenkeelIsa.cmake. Elements of x are fp32, or bf16 where bf16 is true.
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

EVENKEEL_DECLARE_FOR_ISAS(
    // x[i] += bias[i].
    void add_bias_row(bool bf16, void* x, const float* bias, std::int64_t count);
    // sums[i] += x[i].
    void add_row_to(bool bf16, const void* x, float* sums, std::int64_t count);)

}  // namespace evenkeel
