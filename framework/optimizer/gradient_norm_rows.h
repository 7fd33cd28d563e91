// The inner loop of the gradient's norm, compiled once per instruction set. Plain data only: see
// cmake/EvenkeelIsa.cmake.
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

EVENKEEL_DECLARE_FOR_ISAS(
    // The sum of squares, in double.
    double row_sum_of_squares(const float* values, std::int64_t count);)

}  // namespace evenkeel
