// Rows of logits, compiled once per instruction set. Plain data only: see cmake/EvenkeelIsa.cmake. Elements
// are fp32, or bf16 where bf16 is true.
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

EVENKEEL_DECLARE_FOR_ISAS(
    // The largest of the values; NaN if any is NaN.
    float row_max(bool bf16, const void* z, std::int64_t count);
    // sum_i exp(z[i] - max).
    float row_sum_exp(bool bf16, const void* z, float max, std::int64_t count);
    // dz[i] = (exp(z[i] - log_sum_exp) - (i == target)) * scale; dz may be z. target < 0: none.
    void row_softmax_gradient(bool bf16,
                              const void* z,
                              float log_sum_exp,
                              std::int64_t target,
                              float scale,
                              void* dz,
                              std::int64_t count);)

}  // namespace evenkeel
