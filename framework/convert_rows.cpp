#include "framework/convert_rows.h"

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {

void widen_row(const std::uint16_t* from, float* to, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
    if (i < count) store_partial(to + i, load_partial(from + i, count - i), count - i);
}

void narrow_row(const float* from, std::uint16_t* to, std::int64_t count) {
    // In integers, since AVX-512's own conversion turns subnormal numbers into zeros.
    for (std::int64_t i = 0; i < count; ++i) {
        std::uint32_t u;
        __builtin_memcpy(&u, from + i, sizeof u);
        const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        const std::uint32_t nan = (u >> 16) | 0x40u;
        to[i] = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

}  // namespace evenkeel::EVENKEEL_ISA
