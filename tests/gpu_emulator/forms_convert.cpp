// cvt.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "tests/gpu_emulator/floats.h"
#include "tests/gpu_emulator/forms.h"

namespace gpu_emulator {
namespace {

// ---- Integer to integer. Registers may be wider than the types; the result fills the register by
// its sign.

template <class To, class From, bool kSaturate>
Step integer(Block&, std::uint64_t* r, const Op& op) {
    const From v = get<From>(r, op.slots[1]);
    To d = static_cast<To>(v);
    if (kSaturate) {
        using L = std::numeric_limits<To>;
        const __int128 x = v;
        d = x < L::min() ? L::min() : x > L::max() ? L::max() : static_cast<To>(x);
    }
    if constexpr (std::is_signed_v<To>) {
        put(r, op.slots[0], static_cast<std::int64_t>(d));
    } else {
        put(r, op.slots[0], d);
    }
    return Step::kNext;
}

template <class T>
char wide_letter() {
    return sizeof(T) == 1 ? 'B' : sizeof(T) == 2 ? 'H' : sizeof(T) == 4 ? 'W' : 'l';
}

template <class To, class From>
void add_integer(FormTable& t, const std::string& to, const std::string& from) {
    const std::string signature = std::string(1, wide_letter<To>()) + " = " + wide_letter<From>();
    t.add("cvt." + to + "." + from, Form{signature, &integer<To, From, false>});
    using L = std::numeric_limits<To>;
    using M = std::numeric_limits<From>;
    if (std::cmp_less_equal(L::min(), M::min()) && std::cmp_less_equal(M::max(), L::max())) return;
    t.add("cvt.sat." + to + "." + from, Form{signature, &integer<To, From, true>});
}

// ---- Rounding

enum class Round { kNearest, kZero, kDown, kUp };

template <Round kRound>
double to_integral(double v) {
    switch (kRound) {
        case Round::kNearest:
            return std::nearbyint(v);
        case Round::kZero:
            return std::trunc(v);
        case Round::kDown:
            return std::floor(v);
        case Round::kUp:
            return std::ceil(v);
    }
    return v;
}

// exact is the value, near its nearest T: the neighbour that the direction asks for.
template <class T, Round kRound, class Exact>
T directed(T near, Exact exact) {
    if constexpr (kRound == Round::kNearest) {
        return near;
    } else {
        const Exact n = static_cast<Exact>(near);
        const T infinity = std::numeric_limits<T>::infinity();
        const bool down = kRound == Round::kDown || (kRound == Round::kZero && exact > 0);
        if (std::isnan(near) || n == exact) return near;
        if (down) return n > exact ? std::nextafter(near, -infinity) : near;
        return n < exact ? std::nextafter(near, infinity) : near;
    }
}

struct AsIs {
    float operator()(float v) const { return v; }
    double operator()(double v) const { return v; }
};
struct Flushed {
    float operator()(float v) const { return flush(v); }
    double operator()(double v) const { return v; }
};

// Calls add(rounding mode, its name) for the four modes.
template <class F>
void for_each_round(
    F add, const char* nearest, const char* zero, const char* down, const char* up) {
    add(std::integral_constant<Round, Round::kNearest>(), nearest);
    add(std::integral_constant<Round, Round::kZero>(), zero);
    add(std::integral_constant<Round, Round::kDown>(), down);
    add(std::integral_constant<Round, Round::kUp>(), up);
}

// ---- Float to integer: out of range goes to the end of the range; NaN to 0, or for 64 bits on
// either side to the number with only the top bit.

template <class To, class From, Round kRound, class Read>
To float_to_integer(From v) {
    using L = std::numeric_limits<To>;
    if (std::isnan(v)) {
        if (sizeof(From) < 8 && sizeof(To) < 8) return 0;
        return static_cast<To>(std::uint64_t(1) << (8 * sizeof(To) - 1));
    }
    const double x = to_integral<kRound>(Read{}(v));
    const double beyond = std::ldexp(1.0, L::digits);  // 2^31 for s32
    if (x >= beyond) return L::max();
    if (x < static_cast<double>(L::min())) return L::min();
    return static_cast<To>(x);
}

// A signed result fills a wider register by its sign.
template <class To>
using Filled = std::conditional_t<std::is_signed_v<To>, std::int64_t, To>;

template <class To, class From, Round kRound, class Read>
Step to_integer(Block&, std::uint64_t* r, const Op& op) {
    const From v = get<From>(r, op.slots[1]);
    if constexpr (std::is_same_v<From, Half>) {
        put(r, op.slots[0], Filled<To>(float_to_integer<To, float, kRound, Read>(widen(v))));
    } else {
        put(r, op.slots[0], Filled<To>(float_to_integer<To, From, kRound, Read>(v)));
    }
    return Step::kNext;
}

template <class To>
void add_float_to(FormTable& t, const std::string& to) {
    for_each_round(
        [&](auto round, const std::string& name) {
            constexpr Round kRound = decltype(round)::value;
            const std::string start = "cvt." + name, d = std::string(1, wide_letter<To>()) + " = ";
            t.add(start + "." + to + ".f32", Form{d + "w", &to_integer<To, float, kRound, AsIs>});
            t.add(start + ".ftz." + to + ".f32",
                  Form{d + "w", &to_integer<To, float, kRound, Flushed>});
            t.add(start + "." + to + ".f64", Form{d + "l", &to_integer<To, double, kRound, AsIs>});
            t.add(start + "." + to + ".f16", Form{d + "h", &to_integer<To, Half, kRound, AsIs>});
        },
        "rni", "rzi", "rmi", "rpi");
}

// ---- Integer to float

template <class To, class From, Round kRound>
Step to_float(Block&, std::uint64_t* r, const Op& op) {
    const From v = get<From>(r, op.slots[1]);
    put(r, op.slots[0], directed<To, kRound, long double>(static_cast<To>(v), v));
    return Step::kNext;
}

template <class From>
void add_to_float(FormTable& t, const std::string& from) {
    const std::string source(1, wide_letter<From>());
    for_each_round(
        [&](auto round, const std::string& name) {
            constexpr Round kRound = decltype(round)::value;
            t.add("cvt." + name + ".f32." + from,
                  Form{"w = " + source, &to_float<float, From, kRound>});
            t.add("cvt." + name + ".f64." + from,
                  Form{"l = " + source, &to_float<double, From, kRound>});
        },
        "rn", "rz", "rm", "rp");
    if constexpr (sizeof(From) < 8) {
        t.add<Half(From)>(
            "cvt.rn.f16." + from, [](From v) { return narrow<Half>(double(v)); }, true);
        if (sizeof(From) == 1) return;
        t.add<Bfloat16(From)>(
            "cvt.rn.bf16." + from, [](From v) { return narrow<Bfloat16>(double(v)); }, true);
    }
}

// ---- Float to float

float saturate(float v) { return v > 0 ? (v < 1 ? v : 1.0f) : 0.0f; }

template <Round kRound>
float f64_to_f32(double v) {
    return canonical(directed<float, kRound, double>(static_cast<float>(v), v));
}

void add_float_to_float(FormTable& t) {
    t.add<double(float)>("cvt.f64.f32", [](float v) { return double(v); });
    t.add<double(float)>("cvt.ftz.f64.f32", [](float v) { return double(flush(v)); });
    t.add<float(float)>("cvt.sat.f32.f32", [](float v) { return saturate(v); });
    t.add<float(float)>("cvt.ftz.sat.f32.f32", [](float v) { return saturate(flush(v)); });
    t.add<float(float)>("cvt.ftz.f32.f32", [](float v) { return canonical(flush(v)); });
    for_each_round(
        [&](auto round, const std::string& name) {
            constexpr Round kRound = decltype(round)::value;
            t.add<float(double)>("cvt." + name + ".f32.f64",
                                 [](double v) { return f64_to_f32<kRound>(v); });
            t.add<float(double)>("cvt." + name + ".ftz.f32.f64",
                                 [](double v) { return flush(f64_to_f32<kRound>(v)); });
        },
        "rn", "rz", "rm", "rp");
    for_each_round(
        [&](auto round, const std::string& name) {
            constexpr Round kRound = decltype(round)::value;
            auto integral = [](float v) {
                return canonical(static_cast<float>(to_integral<kRound>(v)));
            };
            t.add<float(float)>("cvt." + name + ".f32.f32", integral);
            t.add<float(float)>("cvt." + name + ".ftz.f32.f32", [](float v) {
                return canonical(static_cast<float>(to_integral<kRound>(flush(v))));
            });
            t.add<double(double)>("cvt." + name + ".f64.f64",
                                  [](double v) { return to_integral<kRound>(v); });
        },
        "rni", "rzi", "rmi", "rpi");
}

template <class T>
T rectify(T v) {  // .relu: negative becomes 0, NaN stays
    return (v.bits & 0x8000) != 0 && !std::isnan(widen(v)) ? T{0} : v;
}

template <class T>
void add_halves(FormTable& t, const std::string& type) {
    using Two = Pair<T>(float, float);
    t.add<float(T)>("cvt.f32." + type, [](T v) { return widen(v); });
    t.add<float(T)>("cvt.ftz.f32." + type, [](T v) { return flush(widen(v)); });
    t.add<double(T)>("cvt.f64." + type, [](T v) { return double(widen(v)); });
    t.add<T(float)>("cvt.rn." + type + ".f32", [](float v) { return narrow<T>(v); });
    t.add<T(float)>("cvt.rn.relu." + type + ".f32", [](float v) { return rectify(narrow<T>(v)); });
    t.add<T(double)>("cvt.rn." + type + ".f64", [](double v) { return narrow<T>(v); });
    // The first operand goes to the upper half.
    t.add<Two>("cvt.rn." + type + "x2.f32", [](float a, float b) {
        return Pair<T>{narrow<T>(b), narrow<T>(a)};
    });
    t.add<Two>("cvt.rn.relu." + type + "x2.f32", [](float a, float b) {
        return Pair<T>{rectify(narrow<T>(b)), rectify(narrow<T>(a))};
    });
}

template <class To>
void add_integers_to(FormTable& t, const std::string& to) {
    add_integer<To, std::uint8_t>(t, to, "u8");
    add_integer<To, std::int8_t>(t, to, "s8");
    add_integer<To, std::uint16_t>(t, to, "u16");
    add_integer<To, std::int16_t>(t, to, "s16");
    add_integer<To, std::uint32_t>(t, to, "u32");
    add_integer<To, std::int32_t>(t, to, "s32");
    add_integer<To, std::uint64_t>(t, to, "u64");
    add_integer<To, std::int64_t>(t, to, "s64");
    add_float_to<To>(t, to);
    add_to_float<To>(t, to);
}

}  // namespace

void add_conversion_forms(FormTable& t) {
    add_integers_to<std::uint8_t>(t, "u8");
    add_integers_to<std::int8_t>(t, "s8");
    add_integers_to<std::uint16_t>(t, "u16");
    add_integers_to<std::int16_t>(t, "s16");
    add_integers_to<std::uint32_t>(t, "u32");
    add_integers_to<std::int32_t>(t, "s32");
    add_integers_to<std::uint64_t>(t, "u64");
    add_integers_to<std::int64_t>(t, "s64");
    add_float_to_float(t);
    add_halves<Half>(t, "f16");
    add_halves<Bfloat16>(t, "bf16");
}

}  // namespace gpu_emulator
