// Element types. bfloat16 is storage only: arithmetic happens in float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace evenkeel {

enum class DType { kFloat32, kBFloat16, kInt32 };

// The upper half of an IEEE binary32. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct bfloat16 {
    std::uint16_t bits = 0;

    bfloat16() = default;
    explicit bfloat16(float value) {
        const auto u = std::bit_cast<std::uint32_t>(value);
        if ((u & 0x7fffffffu) > 0x7f800000u) {
            bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);
        } else {
            bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
        }
    }
    explicit operator float() const {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
};
static_assert(sizeof(bfloat16) == 2);

constexpr std::size_t size_of(DType dtype) { return dtype == DType::kBFloat16 ? 2 : 4; }

constexpr const char* name_of(DType dtype) {
    switch (dtype) {
        case DType::kFloat32:
            return "fp32";
        case DType::kBFloat16:
            return "bf16";
        case DType::kInt32:
            return "int32";
    }
    return "?";
}

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
    static constexpr DType value = DType::kFloat32;
};
template <>
struct dtype_of<bfloat16> {
    static constexpr DType value = DType::kBFloat16;
};
template <>
struct dtype_of<std::int32_t> {
    static constexpr DType value = DType::kInt32;
};

}  // namespace evenkeel
