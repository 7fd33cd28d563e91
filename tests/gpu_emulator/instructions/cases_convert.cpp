// cvt (PTX ISA 9.7.9) and what only renames bits: mov, cvta, packing.
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {
namespace {

using Int128 = __int128;

struct Mode {
    const char* text;
    Rounding rounding;
};
constexpr Mode kModes[] = {{"rn", Rounding::kNearest},
                           {"rz", Rounding::kZero},
                           {"rm", Rounding::kDown},
                           {"rp", Rounding::kUp}};
constexpr Mode kIntegralModes[] = {{"rni", Rounding::kNearest},
                                   {"rzi", Rounding::kZero},
                                   {"rmi", Rounding::kDown},
                                   {"rpi", Rounding::kUp}};

Int128 smallest(const std::string& type) {
    return type[0] == 'u' ? 0 : -(Int128{1} << (width_of(type) - 1));
}
Int128 largest(const std::string& type) {
    return (Int128{1} << (width_of(type) - (type[0] == 'u' ? 0 : 1))) - 1;
}

// In a register wider than the type, extended as the type is.
Word in_register(const std::string& type, Int128 value, int width) {
    return low_bits(static_cast<Word>(integer_value(type, static_cast<Word>(value))), width);
}

Lanes integer_values(const std::string& type) {
    const int width = register_width(type);
    return joined(combinations({width == 64   ? u64_edges()
                                : width == 32 ? u32_edges()
                                              : u16_edges()}),
                  random_lanes(48, {width}, 81));
}

const std::vector<std::string>& integer_types() {
    static const std::vector<std::string> types = {"u8",  "s8",  "u16", "s16",
                                                   "u32", "s32", "u64", "s64"};
    return types;
}

std::vector<Case> between_integers() {
    std::vector<Case> cases;
    for (const std::string& to : integer_types())
        for (const std::string& from : integer_types())
            for (const bool sat : {false, true}) {
                const bool fits = smallest(to) <= smallest(from) && largest(from) <= largest(to);
                if (sat && fits) continue;  // not allowed
                const std::string form =
                    std::string("cvt.") + (sat ? "sat." : "") + to + "." + from;
                const auto function = [=](int width) {
                    return [=](const std::vector<Word>& lane) {
                        Int128 value = integer_value(from, lane[0]);
                        if (sat) value = std::max(smallest(to), std::min(largest(to), value));
                        return std::vector<Expected>{{in_register(to, value, width)}};
                    };
                };
                cases.push_back(lane_case(form, {register_width(from)}, {register_width(to)}, {},
                                          integer_values(from), function(register_width(to))));
                // nvcc also converts to narrow types in wide registers.
                if (width_of(to) < 32 && !sat)
                    cases.push_back(lane_case(form, {register_width(from)}, {32}, {},
                                              integer_values(from), function(32), "",
                                              "in a 32-bit register"));
                if (width_of(from) < 32 && !sat) {
                    Lanes wide = random_lanes(64, {32}, 83);
                    cases.push_back(lane_case(form, {32}, {register_width(to)}, {}, wide,
                                              function(register_width(to)), "",
                                              "from a 32-bit register"));
                }
            }
    return cases;
}

struct Float {
    const char* name;
    Kind kind;
    int width;
    int digits;
};
constexpr Float kF16{"f16", Kind::kF16, 16, 11}, kF32{"f32", Kind::kF32, 32, 24},
    kF64{"f64", Kind::kF64, 64, 53}, kBf16{"bf16", Kind::kBf16, 16, 8};

Word encoded(const Float& type, double value, Rounding rounding) {
    switch (type.kind) {
        case Kind::kF16:
            return f16_bits(value, rounding);
        case Kind::kBf16:
            return bf16_bits(value, rounding);
        case Kind::kF32:
            return f32_bits(value, rounding);
        default:
            return bits_of(value);
    }
}

double integral(double value, Rounding rounding) {
    switch (rounding) {
        case Rounding::kNearest:
            return std::nearbyint(value);
        case Rounding::kZero:
            return std::trunc(value);
        case Rounding::kDown:
            return std::floor(value);
        case Rounding::kUp:
            return std::ceil(value);
    }
    return value;
}

// Halves, neighbours of the limits of the integer types, and the edges of the format.
Lanes float_values(const Float& type) {
    std::vector<Word> values = type.width == 64          ? f64_edges()
                               : type.width == 32        ? f32_edges()
                               : type.kind == Kind::kF16 ? f16_edges()
                                                         : bf16_edges();
    for (const double base : {0.25,
                              0.5,
                              0.75,
                              1.0,
                              1.5,
                              2.5,
                              3.5,
                              99.5,
                              127.5,
                              128.5,
                              255.5,
                              256.0,
                              32767.5,
                              32768.0,
                              65535.5,
                              65536.0,
                              2147483520.0,
                              2147483647.0,
                              2147483648.0,
                              4294967040.0,
                              4294967295.0,
                              4294967296.0,
                              9.2233720368547748e18,
                              9.2233720368547758e18,
                              1.8446744073709550e19,
                              1.8446744073709552e19,
                              1e20})
        for (const double sign : {1.0, -1.0}) {
            const double value =
                value_of(type.kind, encoded(type, sign * base, Rounding::kNearest));
            if (std::isfinite(value)) values.push_back(encoded(type, value, Rounding::kNearest));
        }
    return joined(combinations({values}), random_lanes(64, {type.width}, 87));
}

std::vector<Case> float_to_integer() {
    std::vector<Case> cases;
    for (const Float& from : {kF16, kF32, kF64})
        for (const std::string& to : integer_types())
            for (const Mode& mode : kIntegralModes)
                for (const bool ftz : {false, true})
                    for (const bool sat : {false, true}) {
                        if (ftz && from.kind != Kind::kF32) continue;
                        const int width = register_width(to);
                        cases.push_back(lane_case(
                            std::string("cvt.") + mode.text + (ftz ? ".ftz" : "") +
                                (sat ? ".sat" : "") + "." + to + "." + from.name,
                            {from.width}, {width}, {}, float_values(from),
                            [=](const std::vector<Word>& lane) {
                                double value = value_of(from.kind, lane[0]);
                                if (std::isnan(value)) {
                                    // 0, but the highest bit alone from fp64 and to 64 bits.
                                    const bool top = from.width == 64 || width_of(to) == 64;
                                    return std::vector<Expected>{
                                        {top ? in_register(to, Int128{1} << (width_of(to) - 1),
                                                           width)
                                             : 0,
                                         0,
                                         // What a type narrower than 32 bits gets is not said.
                                         top && width_of(to) < 32}};
                                }
                                if (ftz) value = flushed(static_cast<float>(value));
                                value = integral(value, mode.rounding);
                                // Out of range clamps, with and without .sat.
                                Int128 whole = 0;
                                if (value >= static_cast<double>(largest(to)))
                                    whole = largest(to);
                                else if (value <= static_cast<double>(smallest(to)))
                                    whole = smallest(to);
                                else
                                    whole = static_cast<Int128>(value);
                                return std::vector<Expected>{{in_register(to, whole, width)}};
                            }));
                    }
    return cases;
}

// |value| exactly, as the nearest double with the last bit set where it is not exact, so that
// rounding it again is right.
double odd_double(Int128 value) {
    const bool negative = value < 0;
    auto magnitude = static_cast<unsigned __int128>(negative ? -value : value);
    int shift = 0;
    bool lost = false;
    while (magnitude >> 53 != 0) {
        lost = lost || (magnitude & 1) != 0;
        magnitude >>= 1;
        ++shift;
    }
    if (lost) magnitude |= 1;
    const double result = std::ldexp(static_cast<double>(static_cast<Word>(magnitude)), shift);
    return negative ? -result : result;
}

double whole_double(Int128 value, Rounding rounding) {
    Int128 unit = 1;
    while (value / unit >= (Int128{1} << 53) || value / unit <= -(Int128{1} << 53)) unit *= 2;
    Int128 below = value / unit;
    if (below * unit > value) --below;
    const Int128 rest = value - below * unit;
    const bool up = (rounding == Rounding::kNearest &&
                     (rest * 2 > unit || (rest * 2 == unit && below % 2 != 0))) ||
                    (rounding == Rounding::kUp && rest != 0) ||
                    (rounding == Rounding::kZero && rest != 0 && value < 0);
    return static_cast<double>((below + (up ? 1 : 0)) * unit);
}

std::vector<Case> integer_to_float() {
    std::vector<Case> cases;
    for (const Float& to : {kF16, kF32, kF64})
        for (const std::string& from : integer_types())
            for (const Mode& mode : kModes)
                cases.push_back(lane_case(
                    std::string("cvt.") + mode.text + "." + to.name + "." + from,
                    {register_width(from)}, {to.width}, {to.kind}, integer_values(from),
                    [=](const std::vector<Word>& lane) {
                        const Int128 value = integer_value(from, lane[0]);
                        if (to.kind != Kind::kF64)
                            return std::vector<Expected>{
                                {encoded(to, odd_double(value), mode.rounding)}};
                        return std::vector<Expected>{{bits_of(whole_double(value, mode.rounding))}};
                    }));
    return cases;
}

std::vector<Case> between_floats() {
    std::vector<Case> cases;
    cases.push_back(needing(90, lane_case("cvt.rn.bf16.f64", {64}, {16}, {Kind::kBf16},
                                          float_values(kF64), [](const std::vector<Word>& lane) {
                                              return std::vector<Expected>{
                                                  {bf16_bits(as_double(lane[0]))}};
                                          })));
    for (const std::string from : {"s16", "u16", "s32", "u32", "s64", "u64"})
        cases.push_back(
            needing(90, lane_case("cvt.rn.bf16." + from, {width_of(from)}, {16}, {Kind::kBf16},
                                  integer_values(from), [=](const std::vector<Word>& lane) {
                                      return std::vector<Expected>{
                                          {bf16_bits(odd_double(integer_value(from, lane[0])))}};
                                  })));
    // Widening is exact.
    struct Pair {
        Float to, from;
    };
    for (const Pair& pair : {Pair{kF32, kF16}, Pair{kF64, kF16}, Pair{kF64, kF32},
                             Pair{kF32, kBf16}, Pair{kF64, kBf16}})
        for (const bool ftz : {false, true}) {
            if (ftz && pair.from.kind != Kind::kF32 && pair.to.kind != Kind::kF32) continue;
            cases.push_back(needing(
                pair.from.kind == Kind::kBf16 ? 90 : 80,
                lane_case(
                    std::string("cvt.") + (ftz ? "ftz." : "") + pair.to.name + "." + pair.from.name,
                    {pair.from.width}, {pair.to.width}, {pair.to.kind}, float_values(pair.from),
                    [=](const std::vector<Word>& lane) {
                        double value = value_of(pair.from.kind, lane[0]);
                        if (ftz && pair.from.kind != Kind::kF16)
                            value = flushed(static_cast<float>(value));
                        return std::vector<Expected>{{encoded(pair.to, value, Rounding::kNearest)}};
                    })));
        }
    for (const Pair& pair :
         {Pair{kF32, kF64}, Pair{kF16, kF64}, Pair{kF16, kF32}, Pair{kBf16, kF32}})
        for (const Mode& mode : kModes) {
            // A subnormal that the rounding makes, flushed.
            if (pair.to.kind == Kind::kF32)
                cases.push_back(
                    lane_case(std::string("cvt.") + mode.text + ".ftz.f32.f64", {64}, {32},
                              {Kind::kF32}, float_values(kF64), [=](const std::vector<Word>& lane) {
                                  const Word bits = f32_bits(as_double(lane[0]), mode.rounding);
                                  return std::vector<Expected>{{bits_of(flushed(as_float(bits)))}};
                              }));
            const bool bf16 = pair.to.kind == Kind::kBf16,
                       directed =
                           mode.rounding == Rounding::kDown || mode.rounding == Rounding::kUp;
            if (bf16 && directed) continue;
            for (const bool relu : {false, true}) {
                if (relu && (directed || pair.from.kind == Kind::kF64)) continue;
                Lanes values = float_values(pair.from);
                // Ties and their neighbours in the narrower format.
                const int dropped = pair.from.digits - pair.to.digits;
                for (auto row : random_lanes(96, {pair.from.width}, 91)) {
                    const Word half = Word{1} << (dropped - 1);
                    const Word low = row[0] & 3;
                    row[0] = (row[0] & ~((half << 1) - 1)) | (low == 0   ? half
                                                              : low == 1 ? half - 1
                                                                         : half + 1);
                    if (pair.from.width == 32) row[0] = (row[0] & 0x8FFFFFFF) | 0x38000000;
                    values.push_back(row);
                }
                cases.push_back(lane_case(std::string("cvt.") + mode.text + (relu ? ".relu" : "") +
                                              "." + pair.to.name + "." + pair.from.name,
                                          {pair.from.width}, {pair.to.width}, {pair.to.kind},
                                          values, [=](const std::vector<Word>& lane) {
                                              double value = value_of(pair.from.kind, lane[0]);
                                              if (relu && std::signbit(value) && !std::isnan(value))
                                                  value = 0;
                                              return std::vector<Expected>{
                                                  {encoded(pair.to, value, mode.rounding)}};
                                          }));
            }
        }
    // Two at once: the first source becomes the upper half.
    for (const Float& to : {kF16, kBf16})
        for (const Mode& mode : {kModes[0], kModes[1]})
            for (const bool relu : {false, true}) {
                Lanes values = combinations({f32_edges(), {0x3F800000, 0xC0000000, 0x7FC00000}});
                for (auto row : random_lanes(96, {32, 32}, 93)) {
                    for (auto& bits : row) bits = (bits & 0x8FFFFFFF) | 0x38000000;
                    if ((row[0] & 1) != 0) row[0] = (row[0] & 0xFFFF0000) | 0x8000;
                    values.push_back(row);
                }
                const Kind packed = to.kind == Kind::kF16 ? Kind::kF16x2 : Kind::kBf16x2;
                cases.push_back(
                    lane_case(std::string("cvt.") + mode.text + (relu ? ".relu" : "") + "." +
                                  to.name + "x2.f32",
                              {32, 32}, {32}, {packed}, values, [=](const std::vector<Word>& lane) {
                                  Word halves[2];
                                  for (int i = 0; i < 2; ++i) {
                                      double value = as_float(lane[static_cast<std::size_t>(i)]);
                                      if (relu && std::signbit(value) && !std::isnan(value))
                                          value = 0;
                                      halves[i] = encoded(to, value, mode.rounding);
                                  }
                                  return std::vector<Expected>{{halves[0] << 16 | halves[1]}};
                              }));
            }
    // To a whole number of the same type.
    for (const Float& type : {kF16, kF32, kF64})
        for (const Mode& mode : kIntegralModes)
            for (const bool ftz : {false, true}) {
                if (ftz && type.kind != Kind::kF32) continue;
                cases.push_back(lane_case(
                    std::string("cvt.") + mode.text + (ftz ? ".ftz." : ".") + type.name + "." +
                        type.name,
                    {type.width}, {type.width}, {type.kind}, float_values(type),
                    [=](const std::vector<Word>& lane) {
                        double value = value_of(type.kind, lane[0]);
                        if (ftz) value = flushed(static_cast<float>(value));
                        return std::vector<Expected>{
                            {encoded(type, integral(value, mode.rounding), Rounding::kNearest)}};
                    }));
            }
    for (const bool ftz : {false, true})
        for (const bool sat : {false, true}) {
            if (!ftz && !sat) continue;
            cases.push_back(lane_case(
                std::string("cvt") + (ftz ? ".ftz" : "") + (sat ? ".sat" : "") + ".f32.f32", {32},
                {32}, {Kind::kF32}, float_values(kF32), [=](const std::vector<Word>& lane) {
                    float value = as_float(lane[0]);
                    if (ftz) value = flushed(value);
                    if (sat) value = std::isnan(value) || value <= 0 ? 0.0F : std::min(value, 1.0F);
                    return std::vector<Expected>{{bits_of(value)}};
                }));
        }
    return cases;
}

std::vector<Case> renamed_bits() {
    std::vector<Case> cases;
    const auto same = [](const std::vector<Word>& lane) {
        return std::vector<Expected>{{lane[0]}};
    };
    for (const char* type :
         {"b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"}) {
        const int width = width_of(type);
        cases.push_back(lane_case(std::string("mov.") + type, {width}, {width}, {},
                                  random_lanes(32, {width}, 95), same));
    }
    cases.push_back(lane_case("mov.pred", {1}, {1}, {}, combinations({{0, 1}}), same));
    // Packing: the first element is the lowest.
    cases.push_back(lane_case(
        "mov.b32", {16, 16}, {32}, {}, random_lanes(32, {16, 16}, 97),
        [](const std::vector<Word>& lane) {
            return std::vector<Expected>{{lane[0] | lane[1] << 16}};
        },
        "mov.b32 %o0, {%i0, %i1};", "from two halves"));
    cases.push_back(lane_case(
        "mov.b32", {32}, {16, 16}, {}, random_lanes(32, {32}, 98),
        [](const std::vector<Word>& lane) {
            return std::vector<Expected>{{lane[0] & 0xFFFF}, {lane[0] >> 16}};
        },
        "mov.b32 {%o0, %o1}, %i0;", "to two halves"));
    cases.push_back(lane_case(
        "mov.b64", {32, 32}, {64}, {}, random_lanes(32, {32, 32}, 99),
        [](const std::vector<Word>& lane) {
            return std::vector<Expected>{{lane[0] | lane[1] << 32}};
        },
        "mov.b64 %o0, {%i0, %i1};", "from two halves"));
    cases.push_back(lane_case(
        "mov.b64", {64}, {32, 32}, {}, random_lanes(32, {64}, 100),
        [](const std::vector<Word>& lane) {
            return std::vector<Expected>{{lane[0] & 0xFFFFFFFF}, {lane[0] >> 32}};
        },
        "mov.b64 {%o0, %o1}, %i0;", "to two halves"));
    cases.push_back(lane_case(
        "mov.b64", {16, 16, 16, 16}, {64}, {}, random_lanes(32, {16, 16, 16, 16}, 101),
        [](const std::vector<Word>& lane) {
            return std::vector<Expected>{{lane[0] | lane[1] << 16 | lane[2] << 32 | lane[3] << 48}};
        },
        "mov.b64 %o0, {%i0, %i1, %i2, %i3};", "from four quarters"));
    cases.push_back(lane_case(
        "mov.b64", {64}, {16, 16, 16, 16}, {}, random_lanes(32, {64}, 102),
        [](const std::vector<Word>& lane) {
            return std::vector<Expected>{{lane[0] & 0xFFFF},
                                         {lane[0] >> 16 & 0xFFFF},
                                         {lane[0] >> 32 & 0xFFFF},
                                         {lane[0] >> 48}};
        },
        "mov.b64 {%o0, %o1, %o2, %o3}, %i0;", "to four quarters"));
    return cases;
}

}  // namespace

std::vector<Case> conversion_cases() {
    std::vector<Case> cases = between_integers();
    append(cases, float_to_integer());
    append(cases, integer_to_float());
    append(cases, between_floats());
    append(cases, renamed_bits());
    return cases;
}

}  // namespace instructions
