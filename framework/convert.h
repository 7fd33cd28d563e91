// Rows of numbers from one float type to the other, vectorised for the machine at hand.
#pragma once

#include <cstdint>

#include "framework/dtype.h"

namespace evenkeel {

// Exact.
void widen(const bfloat16* from, float* to, std::int64_t count);
// Rounds to nearest, ties to even; NaN stays NaN: the bits that bfloat16(float) gives.
void narrow(const float* from, bfloat16* to, std::int64_t count);

}  // namespace evenkeel
