// fp32 and fp64 arithmetic (PTX ISA 9.7.3).
#include <cfenv>
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Modifiers {
    std::string text;  // ".rz.ftz"
    int rounding = FE_TONEAREST;
    bool ftz = false, sat = false;
};

// The spellings an instruction may have; rounding "" and ".rn" are the same.
std::vector<Modifiers> spellings(bool plain, bool directed, bool ftz, bool sat) {
    struct Mode {
        const char* text;
        int value;
    };
    std::vector<Mode> modes = {{".rn", FE_TONEAREST}};
    if (plain) modes.push_back({"", FE_TONEAREST});
    if (directed) {
        modes.push_back({".rz", FE_TOWARDZERO});
        modes.push_back({".rm", FE_DOWNWARD});
        modes.push_back({".rp", FE_UPWARD});
    }
    std::vector<Modifiers> all;
    for (const Mode& mode : modes)
        for (int flags = 0; flags < 4; ++flags) {
            const bool with_ftz = (flags & 1) != 0, with_sat = (flags & 2) != 0;
            if ((with_ftz && !ftz) || (with_sat && !sat)) continue;
            all.push_back(
                {std::string(mode.text) + (with_ftz ? ".ftz" : "") + (with_sat ? ".sat" : ""),
                 mode.value, with_ftz, with_sat});
        }
    return all;
}

// The compiler must not move the operation out of the rounding mode: operands and result are
// volatile.
template <class T, class F>
T in_rounding_mode(int mode, F operation, T a, T b, T c) {
    volatile T x = a, y = b, z = c;
    std::fesetround(mode);
    volatile T result = operation(static_cast<T>(x), static_cast<T>(y), static_cast<T>(z));
    std::fesetround(FE_TONEAREST);
    return result;
}

float saturated(float value) {
    return std::isnan(value) || value <= 0 ? 0.0F : std::min(value, 1.0F);
}

Lanes f32_values(std::size_t operands, std::uint64_t seed) {
    std::vector<std::vector<Word>> edges(operands, f32_edges());
    if (operands == 3) {
        edges[2] = {0x00000000, 0x80000000, 0x3F800000, 0xBF800001, 0x00000001,
                    0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000};
    }
    Lanes values =
        joined(combinations(edges), random_lanes(128, std::vector<int>(operands, 32), seed));
    // Numbers of like size, where rounding and cancellation show.
    for (auto row : random_lanes(256, std::vector<int>(operands, 32), seed + 1)) {
        for (auto& bits : row) bits = (bits & 0x81FFFFFF) | 0x3E000000;
        values.push_back(row);
    }
    return values;
}

Lanes f64_values(std::size_t operands, std::uint64_t seed) {
    std::vector<std::vector<Word>> edges(operands, f64_edges());
    if (operands == 3) edges[2] = {0, 0x8000000000000000, 0x3FF0000000000000, 0x7FF0000000000000};
    Lanes values =
        joined(combinations(edges), random_lanes(64, std::vector<int>(operands, 64), seed));
    for (auto row : random_lanes(128, std::vector<int>(operands, 64), seed + 1)) {
        for (auto& bits : row) bits = (bits & 0x803FFFFFFFFFFFFF) | 0x3FC0000000000000;
        values.push_back(row);
    }
    return values;
}

// Correctly rounded fp32 instructions: operation on host floats in the rounding mode.
template <class F>
void add_f32(std::vector<Case>& cases,
             const std::string& name,
             std::size_t operands,
             const std::vector<Modifiers>& modifiers,
             F operation) {
    for (const Modifiers& m : modifiers)
        cases.push_back(
            lane_case(name + m.text + ".f32", std::vector<int>(operands, 32), {32}, {Kind::kF32},
                      f32_values(operands, 31), [=](const std::vector<Word>& lane) {
                          float v[3] = {};
                          for (std::size_t i = 0; i < operands; ++i) {
                              v[i] = as_float(lane[i]);
                              if (m.ftz) v[i] = flushed(v[i]);
                          }
                          float result = in_rounding_mode(m.rounding, operation, v[0], v[1], v[2]);
                          if (m.ftz) result = flushed(result);
                          if (m.sat) result = saturated(result);
                          return std::vector<Expected>{{bits_of(result)}};
                      }));
}

template <class F>
void add_f64(std::vector<Case>& cases,
             const std::string& name,
             std::size_t operands,
             const std::vector<Modifiers>& modifiers,
             F operation) {
    for (const Modifiers& m : modifiers)
        cases.push_back(
            lane_case(name + m.text + ".f64", std::vector<int>(operands, 64), {64}, {Kind::kF64},
                      f64_values(operands, 37), [=](const std::vector<Word>& lane) {
                          double v[3] = {};
                          for (std::size_t i = 0; i < operands; ++i) v[i] = as_double(lane[i]);
                          return std::vector<Expected>{
                              {bits_of(in_rounding_mode(m.rounding, operation, v[0], v[1], v[2]))}};
                      }));
}

std::vector<Case> rounded_cases() {
    std::vector<Case> cases;
    const auto add = [](auto a, auto b, auto) { return a + b; };
    const auto sub = [](auto a, auto b, auto) { return a - b; };
    const auto mul = [](auto a, auto b, auto) { return a * b; };
    const auto fma = [](auto a, auto b, auto c) { return std::fma(a, b, c); };
    const auto div = [](auto a, auto b, auto) { return a / b; };
    const auto rcp = [](auto a, auto, auto) { return 1 / a; };
    const auto sqrt = [](auto a, auto, auto) { return std::sqrt(a); };
    add_f32(cases, "add", 2, spellings(true, true, true, true), add);
    add_f32(cases, "sub", 2, spellings(true, true, true, true), sub);
    add_f32(cases, "mul", 2, spellings(true, true, true, true), mul);
    add_f32(cases, "fma", 3, spellings(false, true, true, true), fma);
    add_f32(cases, "mad", 3, spellings(false, true, true, true), fma);
    add_f32(cases, "div", 2, spellings(false, true, true, false), div);
    add_f32(cases, "rcp", 1, spellings(false, true, true, false), rcp);
    add_f32(cases, "sqrt", 1, spellings(false, true, true, false), sqrt);
    add_f64(cases, "add", 2, spellings(true, true, false, false), add);
    add_f64(cases, "sub", 2, spellings(true, true, false, false), sub);
    add_f64(cases, "mul", 2, spellings(true, true, false, false), mul);
    add_f64(cases, "fma", 3, spellings(false, true, false, false), fma);
    add_f64(cases, "mad", 3, spellings(false, true, false, false), fma);
    add_f64(cases, "div", 2, spellings(false, true, false, false), div);
    add_f64(cases, "rcp", 1, spellings(false, true, false, false), rcp);
    add_f64(cases, "sqrt", 1, spellings(false, true, false, false), sqrt);
    return cases;
}

// The smaller of two, where -0 is smaller than +0 and a NaN loses to a number.
template <class T>
T lesser(T a, T b, bool propagate_nan) {
    if (std::isnan(a) || std::isnan(b)) {
        if (propagate_nan || (std::isnan(a) && std::isnan(b))) return std::nan("");
        return std::isnan(a) ? b : a;
    }
    if (a == 0 && b == 0) return std::signbit(a) ? a : b;
    return a < b ? a : b;
}

std::vector<Case> extremum_and_sign_cases() {
    std::vector<Case> cases;
    for (const bool maximum : {false, true}) {
        const std::string name = maximum ? "max" : "min";
        for (const bool ftz : {false, true})
            for (const bool nan : {false, true})
                cases.push_back(lane_case(
                    name + (ftz ? ".ftz" : "") + (nan ? ".NaN" : "") + ".f32", {32, 32}, {32},
                    {Kind::kF32}, f32_values(2, 41), [=](const std::vector<Word>& lane) {
                        float a = as_float(lane[0]), b = as_float(lane[1]);
                        if (ftz) a = flushed(a), b = flushed(b);
                        return std::vector<Expected>{
                            {bits_of(maximum ? -lesser(-a, -b, nan) : lesser(a, b, nan))}};
                    }));
        cases.push_back(lane_case(name + ".f64", {64, 64}, {64}, {Kind::kF64}, f64_values(2, 43),
                                  [=](const std::vector<Word>& lane) {
                                      const double a = as_double(lane[0]), b = as_double(lane[1]);
                                      return std::vector<Expected>{{bits_of(
                                          maximum ? -lesser(-a, -b, false) : lesser(a, b, false))}};
                                  }));
    }
    const auto negative = [](auto a, auto, auto) { return -a; };
    const auto magnitude = [](auto a, auto, auto) { return std::abs(a); };
    const std::vector<Modifiers> ftz = {{""}, {".ftz", FE_TONEAREST, true}}, none = {{""}};
    add_f32(cases, "neg", 1, ftz, negative);
    add_f32(cases, "abs", 1, ftz, magnitude);
    add_f64(cases, "neg", 1, none, negative);
    add_f64(cases, "abs", 1, none, magnitude);
    // The sign of the first on the magnitude of the second.
    const auto signed_as = [](auto a, auto b, auto) { return std::copysign(b, a); };
    add_f32(cases, "copysign", 2, none, signed_as);
    add_f64(cases, "copysign", 2, none, signed_as);

    struct Test {
        const char* name;
        bool (*holds)(double, int);
    };
    const Test tests[] = {
        {"finite", [](double v, int) { return std::isfinite(v); }},
        {"infinite", [](double v, int) { return std::isinf(v); }},
        {"number", [](double v, int) { return !std::isnan(v); }},
        {"notanumber", [](double v, int) { return std::isnan(v); }},
        {"normal", [](double, int kind) { return kind == FP_NORMAL; }},
        {"subnormal", [](double, int kind) { return kind == FP_SUBNORMAL; }},
    };
    for (const Test& test : tests) {
        const auto holds = test.holds;
        cases.push_back(lane_case(std::string("testp.") + test.name + ".f32", {32}, {1}, {},
                                  f32_values(1, 47), [holds](const std::vector<Word>& lane) {
                                      const float a = as_float(lane[0]);
                                      return std::vector<Expected>{{holds(a, std::fpclassify(a))}};
                                  }));
        cases.push_back(lane_case(std::string("testp.") + test.name + ".f64", {64}, {1}, {},
                                  f64_values(1, 47), [holds](const std::vector<Word>& lane) {
                                      const double a = as_double(lane[0]);
                                      return std::vector<Expected>{{holds(a, std::fpclassify(a))}};
                                  }));
    }
    return cases;
}

// fp32 approximations. exact: in double; error: what the manual allows at this argument and value,
// absolute; a negative one where it allows anything.
using Exact = std::function<double(double)>;
using Error = std::function<double(double argument, double value)>;

Error relative(double bound) {
    return [bound](double, double value) { return std::abs(value) * bound; };
}

void add_approximate(std::vector<Case>& cases,
                     const std::string& name,
                     const Lanes& extra,
                     const Exact& exact,
                     const Error& error) {
    for (const bool ftz : {false, true})
        cases.push_back(lane_case(
            name + ".approx" + (ftz ? ".ftz" : "") + ".f32", {32}, {32}, {Kind::kF32},
            joined(f32_values(1, 53), extra), [=](const std::vector<Word>& lane) {
                const float a = ftz ? flushed(as_float(lane[0])) : as_float(lane[0]);
                const double value = exact(a);
                Expected expected{f32_bits(value)};
                if (std::isfinite(value) && value != 0) {
                    const double allowed = error(a, value);
                    expected.any = allowed < 0;
                    // The manual's bound is from the exact value, from which the expected one is up
                    // to half a unit away.
                    expected.tolerance =
                        allowed + std::ldexp(std::abs(value), -24) + std::ldexp(1.0, -149);
                    if (ftz && std::abs(value) < std::ldexp(1.0, -125)) {
                        if (std::abs(value) > std::ldexp(1.0, -127))
                            expected.any = true;  // either side of the flush
                        else
                            expected = {bits_of(std::copysign(0.0F, static_cast<float>(value)))};
                    }
                    if (std::abs(value) > 3.4028e38) expected.any = true;  // or infinity
                }
                return std::vector<Expected>{expected};
            }));
}

Lanes evenly(double from, double to, int count) {
    Lanes rows;
    for (int i = 0; i < count; ++i)
        rows.push_back({bits_of(static_cast<float>(from + (to - from) * i / (count - 1)))});
    return rows;
}

std::vector<Case> approximate_cases() {
    std::vector<Case> cases;
    add_approximate(
        cases, "ex2", joined(evenly(-160, 130, 600), evenly(-1, 1, 100)),
        [](double a) { return std::exp2(a); }, relative(std::ldexp(1.0, -22)));
    add_approximate(
        cases, "lg2", joined(evenly(0.4, 2.2, 400), evenly(1e-3, 1e3, 100)),
        [](double a) { return std::log2(a); },
        [](double a, double value) {
            return std::ldexp(a > 0.5 && a < 2 ? 1 : std::abs(value), -22);
        });
    add_approximate(
        cases, "rcp", evenly(-3, 3, 200), [](double a) { return 1 / a; },
        relative(std::ldexp(1.0, -23)));
    add_approximate(
        cases, "sqrt", evenly(0, 5, 200), [](double a) { return std::sqrt(a); },
        relative(std::ldexp(1.0, -23)));
    add_approximate(
        cases, "rsqrt", evenly(0, 5, 200), [](double a) { return 1 / std::sqrt(a); },
        relative(std::exp2(-22.4)));
    // Stated within [-2 pi, 2 pi] and [-100 pi, 100 pi] only.
    const auto circle = [](double a, double) {
        return std::abs(a) <= 2 * kPi     ? std::exp2(-20.5)
               : std::abs(a) <= 100 * kPi ? std::exp2(-14.7)
                                          : -1;
    };
    const Lanes angles = joined(evenly(-2 * kPi, 2 * kPi, 400), evenly(-300, 300, 100));
    add_approximate(
        cases, "sin", angles, [](double a) { return std::sin(a); }, circle);
    add_approximate(
        cases, "cos", angles, [](double a) { return std::cos(a); }, circle);
    cases.push_back(lane_case(
        "tanh.approx.f32", {32}, {32}, {Kind::kF32}, joined(f32_values(1, 59), evenly(-8, 8, 200)),
        [](const std::vector<Word>& lane) {
            const double value = std::tanh(static_cast<double>(as_float(lane[0])));
            return std::vector<Expected>{{f32_bits(value), std::ldexp(std::abs(value), -11)}};
        }));
    // Starting values for Newton's method, good to 20 bits.
    Lanes positive;
    for (const auto& row : random_lanes(128, {64}, 63))
        positive.push_back({(row[0] & 0x1FFFFFFFFFFFFFFF) | 0x2000000000000000});
    const auto rough = [&](const std::string& form, double (*exact)(double)) {
        cases.push_back(lane_case(
            form, {64}, {64}, {Kind::kF64}, positive, [exact](const std::vector<Word>& lane) {
                const double value = exact(as_double(lane[0]));
                return std::vector<Expected>{{bits_of(value), std::ldexp(std::abs(value), -19)}};
            }));
    };
    rough("rcp.approx.ftz.f64", [](double a) { return 1 / a; });
    rough("rsqrt.approx.f64", [](double a) { return 1 / std::sqrt(a); });
    // Ordinary quotients; the far ends of the range differ between the two and are left out.
    Lanes quotients;
    for (const auto& row : random_lanes(256, {32, 32}, 61))
        quotients.push_back(
            {(row[0] & 0x9FFFFFFF) | 0x20000000, (row[1] & 0x9FFFFFFF) | 0x20000000});
    for (const Word special : {0x00000000, 0x7F800000, 0x7FC00000})
        quotients.push_back({special, 0x40400000});
    for (const char* form :
         {"div.approx.f32", "div.approx.ftz.f32", "div.full.f32", "div.full.ftz.f32"})
        cases.push_back(lane_case(
            form, {32, 32}, {32}, {Kind::kF32}, quotients, [](const std::vector<Word>& lane) {
                const double a = as_float(lane[0]), b = as_float(lane[1]);
                const double value = a / b;
                // 2 units in the last place, and half a one as above.
                return std::vector<Expected>{
                    {f32_bits(value),
                     std::isfinite(value) ? std::ldexp(1.25 * std::abs(value), -22) : 0}};
            }));
    return cases;
}

}  // namespace

std::vector<Case> float_cases() {
    std::vector<Case> cases = rounded_cases();
    append(cases, extremum_and_sign_cases());
    append(cases, approximate_cases());
    return cases;
}

}  // namespace instructions
