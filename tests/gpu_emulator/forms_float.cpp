// fp32 and fp64 arithmetic. Approximations (.approx) are the correctly rounded value of a double
// computation: nothing may be concluded from their last bits.
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/gpu_emulator/floats.h"
#include "tests/gpu_emulator/forms.h"

namespace gpu_emulator {
namespace {

struct Keep {
    float operator()(float v) const { return v; }
};
struct Flush {
    float operator()(float v) const { return flush(v); }
};
struct Clamp {  // .sat: NaN becomes 0
    template <class T>
    T operator()(T v) const {
        return v > T(0) ? (v < T(1) ? v : T(1)) : T(0);
    }
};

template <int kSign>  // of infinity; 0: towards zero
struct Towards {};

// A result rounded in a direction. near is its nearest float; exact is the result, or a double
// between it and the next float on its side of near.
template <class To>
float directed(float near, double exact) {
    constexpr bool zero = std::is_same_v<To, Towards<0>>;
    const bool down = zero ? exact > 0 : std::is_same_v<To, Towards<-1>>;
    if (std::isnan(near) || double(near) == exact) return near;
    if (down) return double(near) > exact ? std::nextafter(near, -INFINITY) : near;
    return double(near) < exact ? std::nextafter(near, INFINITY) : near;
}

// a * b + c rounded down.
float fma_down(float a, float b, float c) {
    const float near = std::fma(a, b, c);
    if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c)) return near;
    // The product is exact, and product + addend is sum + rest without any error (Knuth's two-sum).
    const double product = double(a) * b, addend = c;
    const double sum = product + addend;
    const double other = sum - product;
    const double rest = (product - (sum - other)) + (addend - other);
    if (sum == 0 && (std::signbit(product) || std::signbit(addend))) return -0.0f;
    const bool above = near > sum || (near == sum && rest < 0);
    return above ? std::nextafter(near, -std::numeric_limits<float>::infinity()) : near;
}

// x + y, where exact is the sum as directed() wants it: opposite numbers cancel to -0 downwards.
template <class To>
float directed_sum(float near, double exact, double x, double y) {
    if (exact == 0 && std::is_same_v<To, Towards<-1>> && (std::signbit(x) || std::signbit(y))) {
        return -0.0f;
    }
    return directed<To>(near, exact);
}

// The smaller or larger; a NaN counts as missing.
template <class T>
T lesser(T a, T b) {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T>
T greater(T a, T b) {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    return a > b || (a == b && !std::signbit(a)) ? a : b;
}

// Forms with an optional .ftz (S is what it does) and .sat.
template <class S, class Saturate>
void add_basic(FormTable& t, const std::string& suffix) {
    using Two = float(float, float);
    using Three = float(float, float, float);
    static constexpr auto out = [](float v) { return Saturate{}(canonical(S{}(v))); };
    for (const std::string round : {"", ".rn"}) {
        t.add<Two>("add" + round + suffix, [](float a, float b) { return out(S{}(a) + S{}(b)); });
        t.add<Two>("sub" + round + suffix, [](float a, float b) { return out(S{}(a)-S{}(b)); });
        t.add<Two>("mul" + round + suffix, [](float a, float b) { return out(S{}(a)*S{}(b)); });
    }
    t.add<Three>("fma.rn" + suffix,
                 [](float a, float b, float c) { return out(std::fma(S{}(a), S{}(b), S{}(c))); });
    t.add<Three>("fma.rm" + suffix,
                 [](float a, float b, float c) { return out(fma_down(S{}(a), S{}(b), S{}(c))); });
    t.add<Three>("mad.rn" + suffix,
                 [](float a, float b, float c) { return out(std::fma(S{}(a), S{}(b), S{}(c))); });
    auto add_directed = [&](auto direction, const std::string& round) {
        using To = decltype(direction);
        t.add<Two>("add" + round + suffix, [](float a, float b) {
            const float x = S{}(a), y = S{}(b);
            return out(directed_sum<To>(x + y, sum_to_odd(x, y), x, y));
        });
        t.add<Two>("sub" + round + suffix, [](float a, float b) {
            const float x = S{}(a), y = -S{}(b);
            return out(directed_sum<To>(x + y, sum_to_odd(x, y), x, y));
        });
        t.add<Two>("mul" + round + suffix, [](float a, float b) {
            const float x = S{}(a), y = S{}(b);
            return out(directed<To>(x * y, double(x) * double(y)));
        });
        t.add<Three>("fma" + round + suffix, [](float a, float b, float c) {
            const float x = S{}(a), y = S{}(b), z = S{}(c);
            const double product = double(x) * double(y);
            return out(directed_sum<To>(std::fma(x, y, z), sum_to_odd(product, z), product, z));
        });
    };
    add_directed(Towards<0>(), ".rz");
    add_directed(Towards<-1>(), ".rm");
    add_directed(Towards<1>(), ".rp");
}

template <class S>
void add_rounded(FormTable& t, const std::string& suffix) {
    using One = float(float);
    using Two = float(float, float);
    static constexpr auto out = [](double v) { return canonical(S{}(static_cast<float>(v))); };
    static constexpr auto in = [](float v) { return double(S{}(v)); };
    t.add<Two>("div.rn" + suffix, [](float a, float b) { return out(S{}(a) / S{}(b)); });
    t.add<Two>("div.full" + suffix, [](float a, float b) { return out(in(a) / in(b)); });
    // A divisor beyond 2^126 gives 0, and NaN under infinity.
    t.add<Two>("div.approx" + suffix, [](float a, float b) {
        const double x = in(a), y = in(b);
        if (std::fabs(y) > 0x1p126 && !std::isinf(y)) {
            return out(std::isinf(x) ? NAN : std::copysign(0.0, x) * std::copysign(1.0, y));
        }
        return out(x / y);
    });
    t.add<One>("rcp.rn" + suffix, [](float a) { return out(1.0f / S{}(a)); });
    t.add<One>("rcp.approx" + suffix, [](float a) { return out(1.0 / in(a)); });
    t.add<One>("sqrt.rn" + suffix, [](float a) { return out(std::sqrt(S{}(a))); });
    t.add<One>("sqrt.approx" + suffix, [](float a) { return out(std::sqrt(in(a))); });
    t.add<One>("rsqrt.approx" + suffix, [](float a) { return out(1.0 / std::sqrt(in(a))); });
    t.add<One>("sin.approx" + suffix, [](float a) { return out(std::sin(in(a))); });
    t.add<One>("cos.approx" + suffix, [](float a) { return out(std::cos(in(a))); });
    t.add<One>("lg2.approx" + suffix, [](float a) { return out(std::log2(in(a))); });
    t.add<One>("ex2.approx" + suffix, [](float a) { return canonical(S{}(std::exp2(S{}(a)))); });
    t.add<Two>("min" + suffix, [](float a, float b) { return canonical(lesser(S{}(a), S{}(b))); });
    t.add<Two>("max" + suffix, [](float a, float b) { return canonical(greater(S{}(a), S{}(b))); });
    const std::string nan = suffix.size() > 4 ? ".ftz.NaN.f32" : ".NaN.f32";
    t.add<Two>("min" + nan, [](float a, float b) {
        return std::isnan(a) || std::isnan(b) ? std::bit_cast<float>(kNan32)
                                              : lesser(S{}(a), S{}(b));
    });
    t.add<Two>("max" + nan, [](float a, float b) {
        return std::isnan(a) || std::isnan(b) ? std::bit_cast<float>(kNan32)
                                              : greater(S{}(a), S{}(b));
    });
    t.add<One>("neg" + suffix, [](float a) { return -S{}(a); });
    t.add<One>("abs" + suffix, [](float a) { return std::fabs(S{}(a)); });
}

void add_double(FormTable& t) {
    using One = double(double);
    using Two = double(double, double);
    for (const std::string round : {"", ".rn"}) {
        t.add<Two>("add" + round + ".f64", [](double a, double b) { return a + b; });
        t.add<Two>("sub" + round + ".f64", [](double a, double b) { return a - b; });
        t.add<Two>("mul" + round + ".f64", [](double a, double b) { return a * b; });
    }
    t.add<double(double, double, double)>(
        "fma.rn.f64", [](double a, double b, double c) { return std::fma(a, b, c); });
    t.add<Two>("div.rn.f64", [](double a, double b) { return a / b; });
    t.add<One>("rcp.rn.f64", [](double a) { return 1 / a; });
    t.add<One>("sqrt.rn.f64", [](double a) { return std::sqrt(a); });
    t.add<One>("rcp.approx.ftz.f64", [](double a) { return 1 / a; });
    t.add<One>("rsqrt.approx.f64", [](double a) { return 1 / std::sqrt(a); });
    t.add<Two>("min.f64", [](double a, double b) { return lesser(a, b); });
    t.add<Two>("max.f64", [](double a, double b) { return greater(a, b); });
    t.add<One>("neg.f64", [](double a) { return -a; });
    t.add<One>("abs.f64", [](double a) { return std::fabs(a); });
    t.add<Two>("copysign.f64", [](double a, double b) { return std::copysign(b, a); });
}

}  // namespace

void add_float_forms(FormTable& t) {
    add_basic<Keep, Keep>(t, ".f32");
    add_basic<Flush, Keep>(t, ".ftz.f32");
    add_basic<Keep, Clamp>(t, ".sat.f32");
    add_basic<Flush, Clamp>(t, ".ftz.sat.f32");
    add_rounded<Keep>(t, ".f32");
    add_rounded<Flush>(t, ".ftz.f32");
    // The sign of a on b's magnitude.
    t.add<float(float, float)>("copysign.f32",
                               [](float a, float b) { return std::copysign(b, a); });
    t.add<float(float)>("tanh.approx.f32",
                        [](float a) { return canonical(float(std::tanh(double(a)))); });
    t.add<std::uint32_t(std::uint32_t, std::uint32_t, float)>(
        "slct.b32.f32", [](std::uint32_t a, std::uint32_t b, float c) { return c >= 0 ? a : b; });
    t.add<bool(float)>("testp.finite.f32", [](float a) { return std::isfinite(a); });
    t.add<bool(float)>("testp.infinite.f32", [](float a) { return std::isinf(a); });
    t.add<bool(float)>("testp.notanumber.f32", [](float a) { return std::isnan(a); });
    t.add<bool(float)>("testp.number.f32", [](float a) { return !std::isnan(a); });
    add_double(t);
}

}  // namespace gpu_emulator
