// Vectors of fp32 as wide as the instruction set allows, for flash_attention_kernels.cpp only.
#pragma once

#include <cstdint>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define EVENKEEL_INLINE [[gnu::always_inline]] inline

namespace evenkeel::EVENKEEL_ISA {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kWidth)));
typedef std::int32_t IntVec __attribute__((vector_size(4 * kWidth)));
typedef std::uint32_t UintVec __attribute__((vector_size(4 * kWidth)));
typedef std::uint16_t HalfVec __attribute__((vector_size(2 * kWidth)));

EVENKEEL_INLINE Vec load(const float* p) {
    Vec v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

EVENKEEL_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

// max(a, b) is b when either is NaN.
#if defined(__AVX512F__)
EVENKEEL_INLINE Vec splat(float x) { return _mm512_set1_ps(x); }
EVENKEEL_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
#elif defined(__AVX2__)
EVENKEEL_INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
EVENKEEL_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
#else
EVENKEEL_INLINE Vec splat(float x) { return Vec{x, x, x, x}; }
EVENKEEL_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
#endif

EVENKEEL_INLINE UintVec bits(Vec v) { return reinterpret_cast<UintVec>(v); }
EVENKEEL_INLINE Vec from_bits(UintVec v) { return reinterpret_cast<Vec>(v); }

EVENKEEL_INLINE Vec load_bf16(const std::uint16_t* p) {
    HalfVec h;
    __builtin_memcpy(&h, p, sizeof h);
    return from_bits(__builtin_convertvector(h, UintVec) << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
EVENKEEL_INLINE void store_bf16(std::uint16_t* p, Vec v) {
    const UintVec u = bits(v);
    const UintVec rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const UintVec quiet = (u >> 16) | 0x40u;
    const UintVec result = (u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    const HalfVec h = __builtin_convertvector(result, HalfVec);
    __builtin_memcpy(p, &h, sizeof h);
}

EVENKEEL_INLINE float sum_of_lanes(Vec v) {
    float lanes[kWidth];
    store(lanes, v);
    for (int width = kWidth / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    return lanes[0];
}

EVENKEEL_INLINE float max_of_lanes(Vec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(v);
#else
    float m = v[0];
    for (int i = 1; i < kWidth; ++i) m = m > v[i] ? m : v[i];
    return m;
#endif
}

// `v` in lanes whose column, counted from `column`, lies in [begin, end); `other` elsewhere.
EVENKEEL_INLINE Vec
where_inside(std::int64_t column, std::int64_t begin, std::int64_t end, Vec v, Vec other) {
    IntVec lane;
    for (int i = 0; i < kWidth; ++i) lane[i] = i;
    const auto low = static_cast<std::int32_t>(begin - column);
    const auto high = static_cast<std::int32_t>(end - column);
    return (lane >= low) & (lane < high) ? v : other;
}

// 2^t for t <= 0 (a rounding above it does no harm) to about 1.5 units in the last place; 2^0 is exactly 1,
// NaN stays NaN. Minimax polynomials of degree 5 through (0, 1) for the fraction, found with Remez' algorithm
// on the relative error (8.2e-8 on [0, 1], 9.1e-8 on [-1/2, 1/2]).
EVENKEEL_INLINE Vec exp2(Vec t) {
#if defined(__AVX512F__)
    const Vec f = _mm512_reduce_ps(t, 0x09);  // t - floor(t); 0 for -inf
    Vec p = splat(0.00186713005f);
    p = p * f + splat(0.00901703071f);
    p = p * f + splat(0.0557999127f);
    p = p * f + splat(0.240164444f);
    p = p * f + splat(0.693151295f);
    p = p * f + splat(1.0f);
    return _mm512_scalef_ps(p, t);
#else
    const Vec magic =
        splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    t = max(splat(-126.0f), t);
    const Vec shifted = t + magic;
    const Vec f = t - (shifted - magic);
    Vec p = splat(0.00132647273f);
    p = p * f + splat(0.00967151299f);
    p = p * f + splat(0.0555073358f);
    p = p * f + splat(0.240222424f);
    p = p * f + splat(0.693147004f);
    p = p * f + splat(1.0f);
    return from_bits(bits(p) + (bits(shifted) << 23));
#endif
}

}  // namespace evenkeel::EVENKEEL_ISA
