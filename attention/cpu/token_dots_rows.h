// The inner loop of token_dots, compiled once per instruction set. Plain data only: see
// cmake/EvenkeelIsa.cmake.
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

// The rows of one token: N of D contiguous elements, so many elements apart.
struct DotRows {
    bool bf16 = false;
    std::int64_t heads = 0, dim = 0;
    const void* x = nullptr;
    const void* y = nullptr;
    std::int64_t x_head = 0, y_head = 0;
};

EVENKEEL_DECLARE_FOR_ISAS(float token_dot(const DotRows& rows);)

}  // namespace evenkeel
