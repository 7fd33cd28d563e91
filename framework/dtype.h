// Element types. bfloat16 and float16 are storage only: arithmetic happens in float. fp64 is for sums
// that end in one number (a loss, a norm): such tensors are copied, filled and reduced, no more, and
// converted to no other type.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace evenkeel {

enum class DType { kFloat32, kBFloat16, kFloat16, kInt32, kFloat64 };

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

// IEEE binary16. Conversion rounds to nearest, ties to even, to subnormals and infinity too. NaN
// stays NaN.
struct float16 {
    std::uint16_t bits = 0;

    float16() = default;
    explicit float16(float value) {
        const auto u = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
        std::uint32_t half;
        if (magnitude > 0x7f800000u) {
            half = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
        } else if (magnitude >= 0x47800000u) {  // 65536 and more
            half = 0x7c00u;
        } else if (magnitude >= 0x38800000u) {  // 2^-14: normal; a carry may rightly reach infinity
            half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
        } else {  // adding 0.5 leaves the subnormal's bits, rounded, at the bottom of the fraction
            const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
            half = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
        }
        bits = static_cast<std::uint16_t>(sign | half);
    }
    explicit operator float() const {
        const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
        if (magnitude >= 0x7c00u) {
            return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
        }
        // The exponent's bias differs by 112; the product is exact, for subnormals too.
        const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
    }
};
static_assert(sizeof(float16) == 2);

constexpr std::size_t size_of(DType dtype) {
    if (dtype == DType::kFloat64) return 8;
    return dtype == DType::kBFloat16 || dtype == DType::kFloat16 ? 2 : 4;
}

constexpr const char* name_of(DType dtype) {
    switch (dtype) {
        case DType::kFloat32:
            return "fp32";
        case DType::kBFloat16:
            return "bf16";
        case DType::kFloat16:
            return "fp16";
        case DType::kInt32:
            return "int32";
        case DType::kFloat64:
            return "fp64";
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
struct dtype_of<float16> {
    static constexpr DType value = DType::kFloat16;
};
template <>
struct dtype_of<std::int32_t> {
    static constexpr DType value = DType::kInt32;
};
template <>
struct dtype_of<double> {
    static constexpr DType value = DType::kFloat64;
};

}  // namespace evenkeel
