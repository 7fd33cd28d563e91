// The loops of convert.h, compiled once per instruction set. Plain data only: see cmake/EvenkeelIsa.cmake.
// bf16 as its bits.
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

EVENKEEL_DECLARE_FOR_ISAS(void widen_row(const std::uint16_t* from, float* to, std::int64_t count);
                          void narrow_row(const float* from,
                                          std::uint16_t* to,
                                          std::int64_t count);)

}  // namespace evenkeel
