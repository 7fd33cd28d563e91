// What flash_attention_kernels.cpp needs of vectors beyond framework/simd.h.
#pragma once

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {

// max(a, b) is b when either is NaN.
#if defined(__AVX512F__)
EVENKEEL_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
#elif defined(__AVX2__)
EVENKEEL_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
#else
EVENKEEL_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
#endif

EVENKEEL_INLINE float max_of_lanes(Vec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(v);
#else
    float m = v[0];
    for (int i = 1; i < kLanes; ++i) m = m > v[i] ? m : v[i];
    return m;
#endif
}

// `v` in lanes whose column, counted from `column`, lies in [begin, end); `other` elsewhere.
EVENKEEL_INLINE Vec
where_inside(std::int64_t column, std::int64_t begin, std::int64_t end, Vec v, Vec other) {
    IntVec lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
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
    Vec p = broadcast(0.00186713005f);
    p = p * f + broadcast(0.00901703071f);
    p = p * f + broadcast(0.0557999127f);
    p = p * f + broadcast(0.240164444f);
    p = p * f + broadcast(0.693151295f);
    p = p * f + broadcast(1.0f);
    return _mm512_scalef_ps(p, t);
#else
    const Vec magic =
        broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    t = max(broadcast(-126.0f), t);
    const Vec shifted = t + magic;
    const Vec f = t - (shifted - magic);
    Vec p = broadcast(0.00132647273f);
    p = p * f + broadcast(0.00967151299f);
    p = p * f + broadcast(0.0555073358f);
    p = p * f + broadcast(0.240222424f);
    p = p * f + broadcast(0.693147004f);
    p = p * f + broadcast(1.0f);
    return (Vec)((BitVec)p + ((BitVec)shifted << 23));
#endif
}

struct Tanh {
    Vec value, slope;  // slope: 1 - value^2
};
// To about 2 units in the last place, the slope of large arguments too; NaN stays NaN. Close to 0 an odd
// polynomial (minimax on the relative error, 2.3e-8, found with Remez' algorithm), further away
// 1 - 2w/(1 + w) with w = e^(-2|u|), which would lose the digits of a small u.
EVENKEEL_INLINE Tanh tanh(Vec u) {
    const BitVec sign = (BitVec)u & (BitVec)broadcast(-0.0f);
    const Vec size = (Vec)((BitVec)u ^ sign);
    const Vec one = broadcast(1.0f), two = broadcast(2.0f);
    const Vec w = exp2(size * broadcast(-2.88539008f));  // -2 log2(e)
    const Vec rest = two * w / (one + w);
    const Vec z = u * u;
    Vec p = broadcast(-0.00568787334f);
    p = p * z + broadcast(0.0205918532f);
    p = p * z + broadcast(-0.0537119918f);
    p = p * z + broadcast(0.133308753f);
    p = p * z + broadcast(-0.333332449f);
    const auto near = size < broadcast(0.625f);
    const Vec value = near ? size * z * p + size : one - rest;
    return {(Vec)((BitVec)value | sign), near ? one - value * value : rest * (two - rest)};
}

}  // namespace evenkeel::EVENKEEL_ISA
