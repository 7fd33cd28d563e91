// Vectors of float for sources that are compiled once per instruction set (cmake/EvenkeelIsa.cmake): the
// compilers' own vector types, so + - * / and comparisons are written as for float. Everything is internal
// to its translation unit: one instruction set's code can never be linked in place of another's.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace evenkeel {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(kLanes * 4)));
using IntVec = std::int32_t __attribute__((vector_size(kLanes * 4)));
using BitVec = std::uint32_t __attribute__((vector_size(kLanes * 4)));
using ShortVec = std::uint16_t __attribute__((vector_size(kLanes * 2)));

#define EVENKEEL_INLINE [[gnu::always_inline, maybe_unused]] inline

EVENKEEL_INLINE Vec broadcast(float value) { return value - Vec{}; }

EVENKEEL_INLINE Vec load(const float* from) {
    Vec value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}
EVENKEEL_INLINE void store(float* to, Vec value) { __builtin_memcpy(to, &value, sizeof value); }

// bfloat16, as its bits. Intrinsics where compilers make several instructions of one.
EVENKEEL_INLINE Vec load(const std::uint16_t* from) {
#if defined(__AVX512F__)
    // (The form without a mask sets off a false warning of GCC 12.)
    const auto bits = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
    const auto bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
#else
    ShortVec narrow;
    __builtin_memcpy(&narrow, from, sizeof narrow);
    const auto bits = __builtin_convertvector(narrow, BitVec);
#endif
    return (Vec)((BitVec)bits << 16);
}
// To nearest, ties to even; NaN stays NaN. The AVX-512 instruction rounds subnormal numbers to zero.
EVENKEEL_INLINE void store(std::uint16_t* to, Vec value) {
#if defined(__AVX512BF16__)
    const auto bits = _mm512_cvtneps_pbh((__m512)value);
#else
    const BitVec u = (BitVec)value;
    const BitVec rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const BitVec chosen = value == value ? rounded : (u | 0x400000u);
#if defined(__AVX2__)
    // The upper halves as signed numbers fit 16 bits, so that saturation changes none.
    const auto halves = (__m256i)((IntVec)chosen >> 16);
    const auto bits =
        _mm_packs_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
#elif defined(__x86_64__)
    const auto halves = (__m128i)((IntVec)chosen >> 16);
    const auto bits = _mm_packs_epi32(halves, halves);
#else
    const auto bits = __builtin_convertvector(chosen >> 16, ShortVec);
#endif
#endif
    __builtin_memcpy(to, &bits, kLanes * sizeof(std::uint16_t));
}

// Single elements, for what is left of a row.
EVENKEEL_INLINE float load_one(const float* from) { return *from; }
EVENKEEL_INLINE float load_one(const std::uint16_t* from) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(*from) << 16);
}

EVENKEEL_INLINE void store_one(float* to, float value) { *to = value; }
EVENKEEL_INLINE void store_one(std::uint16_t* to, float value) {
    const auto u = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    *to = static_cast<std::uint16_t>((value == value ? rounded : (u | 0x400000u)) >> 16);
}

// Lane i of the result is lane i XOR kDistance.
template <int kDistance>
EVENKEEL_INLINE Vec swap_lanes(Vec value) {
    IntVec from{};
    for (int i = 0; i < kLanes; ++i) from[i] = i ^ kDistance;
    return __builtin_shuffle(value, from);
}

// The sum of all lanes, pairwise.
EVENKEEL_INLINE float sum(Vec value) {
    if constexpr (kLanes > 8) value += swap_lanes<8>(value);
    if constexpr (kLanes > 4) value += swap_lanes<4>(value);
    value += swap_lanes<2>(value);
    value += swap_lanes<1>(value);
    return value[0];
}

}  // namespace
}  // namespace evenkeel
