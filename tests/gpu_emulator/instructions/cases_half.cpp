// fp16 and bf16 arithmetic, single and packed in pairs (PTX ISA 9.7.4).
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {
namespace {

struct Type {
    const char* name;
    bool bf16;
    bool packed;
};
constexpr Type kTypes[] = {
    {"f16", false, false}, {"f16x2", false, true}, {"bf16", true, false}, {"bf16x2", true, true}};

double decoded(const Type& type, Word bits) {
    return type.bf16 ? bf16_value(bits) : f16_value(bits);
}
Word encoded(const Type& type, double value) {
    return type.bf16 ? bf16_bits(value) : f16_bits(value);
}
Kind kind_of(const Type& type) {
    return type.packed ? (type.bf16 ? Kind::kBf16x2 : Kind::kF16x2)
                       : (type.bf16 ? Kind::kBf16 : Kind::kF16);
}

double flushed_half(double value) {
    return value != 0 && std::abs(value) < std::ldexp(1.0, -14) ? std::copysign(0.0, value) : value;
}

// a + b in double with the last bit set if the sum is not exact, so that rounding it again to fewer
// bits gives the exact sum's rounding.
double odd_sum(double a, double b) {
    const double sum = a + b;
    if (!std::isfinite(sum)) return sum;
    const double part = sum - a;
    const double rest = (a - (sum - part)) + (b - part);
    if (rest == 0) return sum;
    const Word bits = bits_of(sum);
    if ((bits & 1) != 0) return sum;
    return std::nextafter(sum, rest > 0 ? HUGE_VAL : -HUGE_VAL);
}

// operation(a, b, c) on the values of one half; tolerance(value) what an approximation may be off.
using Operation = std::function<double(double, double, double)>;
using Tolerance = std::function<double(double)>;

struct Options {
    bool ftz = false, sat = false, relu = false;
};

Lanes values_of(const Type& type, std::size_t operands, std::uint64_t seed) {
    const auto& edges = type.bf16 ? bf16_edges() : f16_edges();
    std::vector<std::vector<Word>> each(operands, edges);
    if (operands == 3) each[2].resize(12);
    Lanes values =
        joined(combinations(each), random_lanes(256, std::vector<int>(operands, 16), seed));
    // Moderate numbers, where rounding shows.
    for (auto row : random_lanes(256, std::vector<int>(operands, 16), seed + 1)) {
        for (auto& bits : row)
            bits = type.bf16 ? (bits & 0x81FF) | 0x3E00 : (bits & 0x8FFF) | 0x3000;
        values.push_back(row);
    }
    if (!type.packed) return values;
    // Each row's high half comes from another row, so that the halves differ.
    Lanes pairs = values;
    for (std::size_t i = 0; i < values.size(); ++i)
        for (std::size_t k = 0; k < operands; ++k)
            pairs[i][k] |= values[(i * 5 + 11) % values.size()][k] << 16;
    return pairs;
}

Case half_case(const std::string& form,
               const Type& type,
               std::size_t operands,
               const Options& options,
               const Operation& operation,
               const Tolerance& tolerance = nullptr) {
    const int width = type.packed ? 32 : 16;
    const auto one = [=](const std::vector<Word>& lane, int shift, double* allowed) {
        double v[3] = {};
        for (std::size_t i = 0; i < operands; ++i) {
            v[i] = decoded(type, lane[i] >> shift & 0xFFFF);
            if (options.ftz) v[i] = flushed_half(v[i]);
        }
        double result = operation(v[0], v[1], v[2]);
        if (tolerance && std::isfinite(result)) *allowed = std::max(*allowed, tolerance(result));
        if (options.ftz) result = flushed_half(result);
        if (options.sat) result = std::isnan(result) || result <= 0 ? 0.0 : std::min(result, 1.0);
        // relu turns a negative result into +0 and keeps a NaN.
        if (options.relu && (result < 0 || (result == 0 && std::signbit(result)))) result = 0;
        return encoded(type, result);
    };
    return lane_case(form, std::vector<int>(operands, width), {width}, {kind_of(type)},
                     values_of(type, operands, 71), [=](const std::vector<Word>& lane) {
                         Expected expected;
                         expected.bits = one(lane, 0, &expected.tolerance);
                         if (type.packed) expected.bits |= one(lane, 16, &expected.tolerance) << 16;
                         return std::vector<Expected>{expected};
                     });
}

double extremum(double a, double b, bool maximum, bool nan) {
    if (std::isnan(a) || std::isnan(b)) {
        if (nan || (std::isnan(a) && std::isnan(b))) return std::nan("");
        return std::isnan(a) ? b : a;
    }
    if (a == 0 && b == 0) return std::signbit(a) != maximum ? a : b;
    return (a < b) != maximum ? a : b;
}

}  // namespace

std::vector<Case> half_cases() {
    std::vector<Case> cases;
    const auto add = [](double a, double b, double) { return odd_sum(a, b); };
    const auto sub = [](double a, double b, double) { return odd_sum(a, -b); };
    const auto mul = [](double a, double b, double) { return a * b; };
    const auto fma = [](double a, double b, double c) { return odd_sum(a * b, c); };
    for (const Type& type : kTypes) {
        const std::string suffix = std::string(".") + type.name;
        if (!type.bf16)
            for (const char* rn : {"", ".rn"})
                for (const bool ftz : {false, true})
                    for (const bool sat : {false, true}) {
                        const std::string text =
                            std::string(rn) + (ftz ? ".ftz" : "") + (sat ? ".sat" : "") + suffix;
                        const Options options{ftz, sat};
                        cases.push_back(half_case("add" + text, type, 2, options, add));
                        cases.push_back(half_case("sub" + text, type, 2, options, sub));
                        cases.push_back(half_case("mul" + text, type, 2, options, mul));
                        if (rn[0] != '\0')
                            cases.push_back(half_case("fma" + text, type, 3, options, fma));
                    }
        else
            cases.push_back(half_case("fma.rn" + suffix, type, 3, {}, fma));
        if (type.bf16)
            for (const std::string rn : {"", ".rn"}) {
                cases.push_back(needing(90, half_case("add" + rn + suffix, type, 2, {}, add)));
                cases.push_back(needing(90, half_case("sub" + rn + suffix, type, 2, {}, sub)));
                cases.push_back(needing(90, half_case("mul" + rn + suffix, type, 2, {}, mul)));
            }
        cases.push_back(half_case("fma.rn.relu" + suffix, type, 3, {false, false, true}, fma));
        for (const bool ftz : {false, true}) {
            if (ftz && type.bf16) continue;
            const std::string text = (ftz ? ".ftz" : "") + suffix;
            cases.push_back(half_case("neg" + text, type, 1, {ftz},
                                      [](double a, double, double) { return -a; }));
            cases.push_back(half_case("abs" + text, type, 1, {ftz},
                                      [](double a, double, double) { return std::abs(a); }));
            for (const bool maximum : {false, true})
                for (const bool nan : {false, true})
                    cases.push_back(half_case(
                        std::string(maximum ? "max" : "min") + (ftz ? ".ftz" : "") +
                            (nan ? ".NaN" : "") + suffix,
                        type, 2, {ftz},
                        [=](double a, double b, double) { return extremum(a, b, maximum, nan); }));
        }
        if (type.bf16) continue;
        // Stated: 2^-9.9 of the value, and 2^-10.987; and half a unit for the expected value's own
        // rounding.
        cases.push_back(half_case(
            "ex2.approx" + suffix, type, 1, {},
            [](double a, double, double) { return std::exp2(a); },
            [](double v) {
                return v * (std::exp2(-9.9) + std::exp2(-11)) + std::ldexp(1.0, -24);
            }));
        cases.push_back(half_case(
            "tanh.approx" + suffix, type, 1, {},
            [](double a, double, double) { return std::tanh(a); },
            [](double) { return std::exp2(-10.987) + std::exp2(-12); }));
    }
    return cases;
}

}  // namespace instructions
