// The inner loops of normalized_update.h, compiled once per instruction set. Plain data only: see
// cmake/EvenkeelIsa.cmake. Elements are fp32, or bf16 where bf16 is true; all rows follow one another.
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

struct NormalizedUpdateRows {
    bool bf16 = false;
    std::int64_t width = 0;
    const void *h = nullptr, *a = nullptr, *dy = nullptr;  // [rows, width]
    const float* alpha = nullptr;                          // [width]
    float* inverse = nullptr;                              // [rows, 2]
    void *y = nullptr, *dh = nullptr, *da = nullptr;       // [rows, width]
};

// Rows begin .. end-1. The gradient of alpha is added to dalpha [width].
EVENKEEL_DECLARE_FOR_ISAS(void normalized_update_forward_rows(const NormalizedUpdateRows& rows,
                                                              std::int64_t begin,
                                                              std::int64_t end);
                          void normalized_update_backward_rows(const NormalizedUpdateRows& rows,
                                                               std::int64_t begin,
                                                               std::int64_t end,
                                                               float* dalpha);)

}  // namespace evenkeel
