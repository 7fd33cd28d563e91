#include "framework/convert.h"

#include <bit>

namespace evenkeel {

__attribute__((target_clones("avx512f", "avx2", "default"))) void widen(const bfloat16* from,
                                                                        float* to,
                                                                        std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i].bits) << 16);
    }
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void narrow(const float* from,
                                                                         bfloat16* to,
                                                                         std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        // bfloat16's constructor without its branch, so that the loop vectorises.
        const auto u = std::bit_cast<std::uint32_t>(from[i]);
        const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        const std::uint32_t nan = (u >> 16) | 0x40u;
        to[i].bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

}  // namespace evenkeel
