// fp16 and bf16 arithmetic, single and packed. Each operation is exact in double and rounded once.
#include <cmath>
#include <cstdint>

#include "tests/gpu_emulator/floats.h"
#include "tests/gpu_emulator/forms.h"

namespace gpu_emulator {
namespace {

template <class T>
T combine_minimum(T a, T b, bool smaller, bool keep_nan) {
    const float x = widen(a), y = widen(b);
    if (std::isnan(x) || std::isnan(y)) {
        if (keep_nan || (std::isnan(x) && std::isnan(y))) return T{0x7fff};
        return std::isnan(x) ? b : a;
    }
    const bool first =
        smaller ? x < y || (x == y && std::signbit(x)) : x > y || (x == y && !std::signbit(x));
    return first ? a : b;
}

template <class T, class F>
void add_one_and_two(FormTable& t, const std::string& op, const std::string& type, F) {
    t.add<T(T, T)>(op + "." + type, [](T a, T b) { return F{}(a, b); });
    t.add<Pair<T>(Pair<T>, Pair<T>)>(op + "." + type + "x2", [](Pair<T> a, Pair<T> b) {
        return Pair<T>{F{}(a.x, b.x), F{}(a.y, b.y)};
    });
}

template <class T>
void add_type(FormTable& t, const std::string& type) {
    for (const std::string round : {"", ".rn"}) {
        add_one_and_two<T>(t, "add" + round, type,
                           [](T a, T b) { return narrow<T>(sum_to_odd(widen(a), widen(b))); });
        add_one_and_two<T>(t, "sub" + round, type,
                           [](T a, T b) { return narrow<T>(sum_to_odd(widen(a), -widen(b))); });
        add_one_and_two<T>(t, "mul" + round, type,
                           [](T a, T b) { return narrow<T>(double(widen(a)) * double(widen(b))); });
    }
    static constexpr auto fma = [](T a, T b, T c) {
        return narrow<T>(sum_to_odd(double(widen(a)) * double(widen(b)), widen(c)));
    };
    t.add<T(T, T, T)>("fma.rn." + type, fma);
    t.add<Pair<T>(Pair<T>, Pair<T>, Pair<T>)>(
        "fma.rn." + type + "x2", [](Pair<T> a, Pair<T> b, Pair<T> c) {
            return Pair<T>{fma(a.x, b.x, c.x), fma(a.y, b.y, c.y)};
        });
    add_one_and_two<T>(t, "min", type, [](T a, T b) { return combine_minimum(a, b, true, false); });
    add_one_and_two<T>(t, "max", type,
                       [](T a, T b) { return combine_minimum(a, b, false, false); });
    add_one_and_two<T>(t, "min.NaN", type,
                       [](T a, T b) { return combine_minimum(a, b, true, true); });
    add_one_and_two<T>(t, "max.NaN", type,
                       [](T a, T b) { return combine_minimum(a, b, false, true); });
    static constexpr auto flip = [](T a) { return T{std::uint16_t(a.bits ^ 0x8000)}; };
    static constexpr auto magnitude = [](T a) { return T{std::uint16_t(a.bits & 0x7fff)}; };
    t.add<T(T)>("neg." + type, flip);
    t.add<T(T)>("abs." + type, magnitude);
    t.add<Pair<T>(Pair<T>)>("neg." + type + "x2", [](Pair<T> a) {
        return Pair<T>{flip(a.x), flip(a.y)};
    });
    t.add<Pair<T>(Pair<T>)>("abs." + type + "x2", [](Pair<T> a) {
        return Pair<T>{magnitude(a.x), magnitude(a.y)};
    });
}

}  // namespace

void add_half_forms(FormTable& t) {
    add_type<Half>(t, "f16");
    add_type<Bfloat16>(t, "bf16");
}

}  // namespace gpu_emulator
