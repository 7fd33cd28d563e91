// Element-wise sums and maxima over several blocks, compiled once per instruction set. Plain data only: see
// cmake/EvenkeelIsa.cmake.
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

EVENKEEL_DECLARE_FOR_ISAS(
    // out[i] = sources[0][i] (+ or max) .. sources[n-1][i], in that order, for begin <= i < end; bf16 (as
    // bits) or fp32, in fp32 with one rounding. out may be one of the sources.
    void reduce_float_rows(bool bf16,
                           bool maximum,
                           const void* const* sources,
                           int num_sources,
                           void* out,
                           std::int64_t begin,
                           std::int64_t end);)

}  // namespace evenkeel
