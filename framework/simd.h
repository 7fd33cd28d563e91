// Vectors of float for sources that are compiled once per instruction set (cmake/EvenkeelIsa.cmake): the
// compilers' own vector types, so + - * / and comparisons are written as for float. Everything is internal
// to its translation unit: one instruction set's code can never be linked in place of another's.
#pragma once

#include <cstddef>
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
// The bfloat16 in the upper half of each lane, anything below it: to nearest, ties to even; NaN stays NaN.
EVENKEEL_INLINE BitVec round_to_bf16(Vec value) {
    const BitVec u = (BitVec)value;
    const BitVec rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return value == value ? rounded : (u | 0x400000u);
}
// The AVX-512 instructions round subnormal numbers to zero.
EVENKEEL_INLINE void store(std::uint16_t* to, Vec value) {
#if defined(__AVX512BF16__)
    const auto bits = _mm512_cvtneps_pbh((__m512)value);
#else
    const BitVec chosen = round_to_bf16(value);
#if defined(__AVX512F__)
    const auto bits = _mm512_cvtepi32_epi16((__m512i)(chosen >> 16));
#elif defined(__AVX2__)
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

// 2 * kLanes elements, split into those at even and those at odd places. For bfloat16 that is cheaper than
// keeping their order: each half of a 32-bit lane becomes the upper half of a float in place.
EVENKEEL_INLINE void load_even_odd(const float* from, Vec& even, Vec& odd) {
    IntVec places{};
    for (int i = 0; i < kLanes; ++i) places[i] = 2 * i;
    const Vec low = load(from), high = load(from + kLanes);
    even = __builtin_shuffle(low, high, places);
    odd = __builtin_shuffle(low, high, places + 1);
}
EVENKEEL_INLINE void load_even_odd(const std::uint16_t* from, Vec& even, Vec& odd) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    BitVec pairs;
    __builtin_memcpy(&pairs, from, sizeof pairs);
    even = (Vec)(pairs << 16);
    odd = (Vec)(pairs & 0xffff0000u);
}
EVENKEEL_INLINE void store_even_odd(float* to, Vec even, Vec odd) {
    IntVec places{};
    for (int i = 0; i < kLanes; ++i) places[i] = i / 2 + i % 2 * kLanes;
    store(to, __builtin_shuffle(even, odd, places));
    store(to + kLanes, __builtin_shuffle(even, odd, places + kLanes / 2));
}
EVENKEEL_INLINE void store_even_odd(std::uint16_t* to, Vec even, Vec odd) {
#if defined(__AVX512BF16__)
    using ShortVec2 = std::uint16_t __attribute__((vector_size(kLanes * 4)));
    ShortVec2 places{};
    for (int i = 0; i < 2 * kLanes; ++i) places[i] = i / 2 + i % 2 * kLanes;
    const auto halves = (ShortVec2)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    const auto bits = __builtin_shuffle(halves, places);
#else
    const BitVec bits = (round_to_bf16(even) >> 16) | (round_to_bf16(odd) & 0xffff0000u);
#endif
    __builtin_memcpy(to, &bits, sizeof bits);
}

// Whole cache lines to memory without bringing them into the caches first or keeping them there: for results
// that would not stay. Other threads see them after finish_stores_past_caches().
EVENKEEL_INLINE void store_past_caches(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
    auto* words = static_cast<float*>(to);
    const auto* values = static_cast<const float*>(from);
    for (std::size_t i = 0; i < bytes / sizeof(float); i += kLanes) {
#if defined(__AVX512F__)
        _mm512_stream_ps(words + i, load(values + i));
#elif defined(__AVX2__)
        _mm256_stream_ps(words + i, load(values + i));
#else
        _mm_stream_ps(words + i, load(values + i));
#endif
    }
#else
    __builtin_memcpy(to, from, bytes);
#endif
}
EVENKEEL_INLINE void finish_stores_past_caches() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

// The first count elements, and zeros: what is left of a row.
template <typename T>
EVENKEEL_INLINE Vec load_partial(const T* from, std::int64_t count) {
    T lanes[kLanes] = {};
    __builtin_memcpy(lanes, from, static_cast<std::size_t>(count) * sizeof(T));
    return load(lanes);
}
template <typename T>
EVENKEEL_INLINE void store_partial(T* to, Vec value, std::int64_t count) {
    T lanes[kLanes];
    store(lanes, value);
    __builtin_memcpy(to, lanes, static_cast<std::size_t>(count) * sizeof(T));
}

// Lane i of the result is lane i XOR kDistance.
template <int kDistance>
EVENKEEL_INLINE Vec swap_lanes(Vec value) {
    IntVec from{};
    for (int i = 0; i < kLanes; ++i) from[i] = i ^ kDistance;
    return __builtin_shuffle(value, from);
}

// Adds the squares of 2 * kLanes elements. (The dot product instruction for bfloat16 is no faster.)
template <typename T>
EVENKEEL_INLINE Vec add_squares(Vec sum, const T* from) {
    Vec a, b;
    if constexpr (sizeof(T) == 2) {
        load_even_odd(from, a, b);
    } else {
        a = load(from), b = load(from + kLanes);
    }
    return sum + a * a + b * b;
}

// The sum of all lanes, pairwise.
EVENKEEL_INLINE float sum(Vec value) {
    if constexpr (kLanes > 8) value += swap_lanes<8>(value);
    if constexpr (kLanes > 4) value += swap_lanes<4>(value);
    value += swap_lanes<2>(value);
    value += swap_lanes<1>(value);
    return value[0];
}

// Two vectors' sums of lanes that lie kDistance apart, those of a in the lanes without that bit.
template <int kDistance>
EVENKEEL_INLINE Vec fold(Vec a, Vec b) {
    IntVec from{};
    for (int i = 0; i < kLanes; ++i) from[i] = i & kDistance ? kLanes + i : i;
    return __builtin_shuffle(a, b, from) + __builtin_shuffle(a, b, from ^ kDistance);
}

// The sums of all lanes of four vectors, in the first four lanes: for less than two sums' instructions.
EVENKEEL_INLINE Vec sums(Vec a, Vec b, Vec c, Vec d) {
    Vec result = fold<2>(fold<1>(a, b), fold<1>(c, d));
    if constexpr (kLanes > 4) result += swap_lanes<4>(result);
    if constexpr (kLanes > 8) result += swap_lanes<8>(result);
    return result;
}

// e^x to 2 units in the last place; below -87.3 and above 88 the values at those ends. By x = n ln 2 + r,
// |r| <= ln 2 / 2, and the Taylor polynomial of degree 7 (error below 6e-9).
EVENKEEL_INLINE Vec exp(Vec x) {
    x = x < -87.3f ? broadcast(-87.3f) : x;
    x = x > 88.0f ? broadcast(88.0f) : x;
    const Vec shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: n stands in the lowest bits
    const Vec n = shifted - 12582912.0f;
    const Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
    Vec p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (Vec)(((BitVec)shifted + 127u) << 23);
}

// Squares below this lose bits, or all of them, in fp32.
constexpr float kSmallMean = 1e-30f;
constexpr float kLargeMean = 3e38f;

// 1 / sqrt(sum of (x - mean)^2 / divisor + eps) from the row itself, where its squares over- or underflow
// in fp32; 0 where the root is.
template <typename T>
[[gnu::noinline, maybe_unused]] float careful_reciprocal_root(
    const T* row, std::int64_t width, double mean, double divisor, float eps) {
    double sum = 0.0;
    for (std::int64_t c = 0; c < width; ++c) {
        const double value = load_partial(row + c, 1)[0] - mean;
        sum += value * value;
    }
    const double root = __builtin_sqrt(sum / divisor + eps);
    if (root == 0.0) return 0.0f;
    const double inverse = 1.0 / root;
    return inverse > kLargeMean ? kLargeMean : static_cast<float>(inverse);
}

// 1 / sqrt(mean + eps) of a row whose squares sum to sum_of_squares.
template <typename T>
EVENKEEL_INLINE float reciprocal_rms(float sum_of_squares,
                                     const T* row,
                                     std::int64_t width,
                                     float eps) {
    const float mean = sum_of_squares / static_cast<float>(width);
    if (mean <= kLargeMean && mean + eps >= kSmallMean) [[likely]] {
        return 1.0f / __builtin_sqrtf(mean + eps);
    }
    return careful_reciprocal_root(row, width, 0.0, static_cast<double>(width), eps);
}

}  // namespace
}  // namespace evenkeel
