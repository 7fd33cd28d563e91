// bf16, fp16 and rounding, from the formats' definitions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace gpu_emulator {

struct Half {
    std::uint16_t bits;
};
struct Bfloat16 {
    std::uint16_t bits;
};
template <class T>
struct Pair {  // two 16-bit floats in a 32-bit register, x in the low half
    T x, y;
};

constexpr std::uint32_t kNan32 = 0x7fffffffu;

inline float widen(Bfloat16 v) { return std::bit_cast<float>(std::uint32_t(v.bits) << 16); }

inline float widen(Half v) {
    const std::uint32_t sign = (v.bits & 0x8000u) << 16, exponent = (v.bits >> 10) & 31,
                        m = v.bits & 1023;
    if (exponent == 31) {
        return std::bit_cast<float>(m != 0 ? kNan32 : sign | 0x7f800000u);
    }
    if (exponent == 0) {
        const float magnitude = std::ldexp(static_cast<float>(m), -24);
        return sign != 0 ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (m << 13));
}

// Rounds a double to a binary format of P significand bits, smallest normal exponent E, largest
// finite value MAX, to nearest, ties to even: the value again as a double (beyond MAX: infinity).
// Exact operations in double followed by this round once.
template <int P, int E>
inline double round_to(double v, double max) {
    if (!std::isfinite(v) || v == 0) return v;
    int exponent;
    std::frexp(v, &exponent);  // v = f * 2^exponent, f in [0.5, 1)
    const int last = std::max(exponent - P, E - P + 1);
    const double scaled = std::ldexp(v, -last);
    const double rounded = std::ldexp(std::nearbyint(scaled), last);
    if (std::fabs(rounded) > max) return std::copysign(INFINITY, v);
    return rounded == 0 ? std::copysign(0.0, v) : rounded;
}

inline void narrow(double v, Bfloat16& to) {
    if (std::isnan(v)) {
        to.bits = 0x7fff;
        return;
    }
    const float f = static_cast<float>(round_to<8, -126>(v, 3.3895313892515355e38));
    to.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16);
}

inline void narrow(float v, Bfloat16& to) {
    if (std::isnan(v)) {
        to.bits = 0x7fff;
        return;
    }
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
    to.bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline void narrow(double v, Half& to) {
    const std::uint16_t sign = std::signbit(v) ? 0x8000 : 0;
    if (std::isnan(v)) {
        to.bits = 0x7fff;
        return;
    }
    const double r = std::fabs(round_to<11, -14>(v, 65504.0));
    if (std::isinf(r)) {
        to.bits = sign | 0x7c00;
    } else if (r < 0x1p-14) {
        to.bits = static_cast<std::uint16_t>(sign | static_cast<int>(r * 0x1p24));
    } else {
        const std::uint32_t f = std::bit_cast<std::uint32_t>(static_cast<float>(r));
        to.bits = static_cast<std::uint16_t>(sign | (((f >> 23) - 112) << 10) | ((f >> 13) & 1023));
    }
}

template <class T, class From>
inline T narrow(From v) {
    T to;
    narrow(v, to);
    return to;
}

// a + b such that rounding the result to fewer bits gives what rounding the exact sum would: the
// last bit is set when anything was lost.
inline double sum_to_odd(double a, double b) {
    const double s = a + b;
    if (!std::isfinite(s)) return s;
    const double bb = s - a, lost = (a - (s - bb)) + (b - bb);
    if (lost == 0 || (std::bit_cast<std::uint64_t>(s) & 1) != 0) return s;
    return std::nextafter(s, lost > 0 ? INFINITY : -INFINITY);
}

// fp32 with subnormals flushed to a zero of the same sign (.ftz).
inline float flush(float v) {
    return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v;
}

// Results of fp32 arithmetic carry one NaN.
inline float canonical(float v) { return std::isnan(v) ? std::bit_cast<float>(kNan32) : v; }

}  // namespace gpu_emulator
