#include "tests/gpu_emulator/instructions/cases.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iomanip>
#include <iterator>
#include <sstream>

namespace instructions {
namespace {

bool is_float(Kind kind) { return kind != Kind::kBits; }

std::string hex(Word bits) {
    std::ostringstream text;
    text << "0x" << std::hex << bits;
    return text.str();
}

std::string shown(Kind kind, Word bits) {
    std::ostringstream text;
    text << hex(bits);
    if (kind == Kind::kF16x2 || kind == Kind::kBf16x2) {
        const Kind half = kind == Kind::kF16x2 ? Kind::kF16 : Kind::kBf16;
        text << " (" << value_of(half, bits & 0xFFFF) << ", " << value_of(half, bits >> 16 & 0xFFFF)
             << ")";
    } else if (is_float(kind)) {
        text << " (" << std::setprecision(9) << value_of(kind, bits) << ")";
    }
    return text.str();
}

bool agrees(Kind kind, Word got, Word want, double tolerance) {
    if (got == want) return true;
    if (kind == Kind::kF16x2 || kind == Kind::kBf16x2) {
        const Kind half = kind == Kind::kF16x2 ? Kind::kF16 : Kind::kBf16;
        return agrees(half, got & 0xFFFF, want & 0xFFFF, tolerance) &&
               agrees(half, got >> 16, want >> 16, tolerance);
    }
    if (!is_float(kind)) return false;
    const double a = value_of(kind, got), b = value_of(kind, want);
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return tolerance > 0 && (a == b || std::abs(a - b) <= tolerance);
}

std::string bytes_difference(const char* what, const Bytes& got, const Bytes& want) {
    if (got.size() != want.size()) return std::string(what) + " bytes: wrong number";
    std::size_t wrong = 0, first = 0;
    for (std::size_t i = got.size(); i-- > 0;)
        if (got[i] != want[i]) ++wrong, first = i;
    if (wrong == 0) return "";
    std::ostringstream text;
    text << what << " memory: " << wrong << " of " << got.size() << " bytes differ, the first at "
         << first << ": got " << hex(std::to_integer<Word>(got[first])) << ", want "
         << hex(std::to_integer<Word>(want[first]));
    return text.str();
}

std::string compare(const Case& c,
                    const Result& got,
                    const Expectation& want,
                    const Bytes& want_shared,
                    const Bytes& want_global,
                    double slack) {
    std::size_t wrong = 0;
    std::ostringstream text;
    for (std::size_t thread = 0; thread < c.in.size(); ++thread)
        for (std::size_t i = 0; i < c.snippet.out.size(); ++i) {
            const Expected& expected = want.out[thread][i];
            const Kind kind = i < c.kinds.size() ? c.kinds[i] : Kind::kBits;
            const Word bits = got.out[thread][i];
            if (expected.any || agrees(kind, bits, expected.bits, slack * expected.tolerance))
                continue;
            if (wrong++ > 0) continue;
            text << "thread " << thread << " output " << i << ": got " << shown(kind, bits)
                 << ", want " << shown(kind, expected.bits);
            if (expected.tolerance > 0) text << " within " << slack * expected.tolerance;
            text << "; inputs";
            for (const Word value : c.in[thread]) text << " " << hex(value);
        }
    if (wrong > 1) text << " (and " << wrong - 1 << " more)";
    if (wrong > 0) return text.str();
    const std::string shared = bytes_difference("shared", got.shared, want_shared);
    return shared.empty() ? bytes_difference("global", got.global, want_global) : shared;
}

}  // namespace

bool same_number(Kind kind, Word a, Word b) { return agrees(kind, a, b, 0); }

std::string difference(const Case& c, const Result& got) {
    const Expectation want = c.expect(c.in);
    return compare(c, got, want, want.shared.empty() ? c.snippet.shared : want.shared,
                   want.global.empty() ? c.snippet.global : want.global, 1);
}

std::string difference(const Case& c, const Result& got, const Result& recorded) {
    Expectation want = c.expect(c.in);
    for (std::size_t thread = 0; thread < c.in.size(); ++thread)
        for (std::size_t i = 0; i < c.snippet.out.size(); ++i)
            want.out[thread][i].bits = recorded.out[thread][i];
    // Both may be off to opposite sides.
    return compare(c, got, want, recorded.shared, recorded.global, 2);
}

Case lane_case(const std::string& form,
               const std::vector<int>& in,
               const std::vector<int>& out,
               const std::vector<Kind>& kinds,
               const Lanes& values,
               const LaneFunction& function,
               const std::string& body,
               const std::string& name) {
    Case c;
    c.form = form;
    c.name = name;
    c.snippet.in = in;
    c.snippet.out = out;
    c.snippet.body = body;
    if (body.empty()) {
        c.snippet.body = form;
        const char* separator = " ";
        for (std::size_t i = 0; i < out.size(); ++i, separator = ", ")
            c.snippet.body += separator + ("%o" + std::to_string(i));
        for (std::size_t i = 0; i < in.size(); ++i) c.snippet.body += ", %i" + std::to_string(i);
        c.snippet.body += ";";
    }
    c.kinds = kinds;
    c.in = whole_warps(values);
    c.expect = [function](const Lanes& lanes) {
        Expectation expectation;
        for (const auto& lane : lanes) expectation.out.push_back(function(lane));
        return expectation;
    };
    return c;
}

Case needing(int arch, Case c) {
    c.snippet.arch = arch;
    return c;
}

Lanes combinations(const std::vector<std::vector<Word>>& operands) {
    Lanes rows = {{}};
    for (const auto& values : operands) {
        Lanes longer;
        for (const auto& row : rows)
            for (const Word value : values) {
                longer.push_back(row);
                longer.back().push_back(value);
            }
        rows = std::move(longer);
    }
    return rows;
}

Lanes random_lanes(std::size_t count, const std::vector<int>& widths, std::uint64_t seed) {
    Lanes rows(count);
    std::uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
    for (auto& row : rows)
        for (const int width : widths) {
            // splitmix64
            state += 0x9E3779B97F4A7C15;
            std::uint64_t z = state;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
            z ^= z >> 31;
            row.push_back(width == 64 ? z : z & ((Word{1} << width) - 1));
        }
    return rows;
}

Lanes joined(Lanes first, const Lanes& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

Lanes whole_warps(Lanes rows, std::size_t block) {
    const std::size_t count = rows.size();
    while (rows.size() % block != 0) rows.push_back(rows[rows.size() % count]);
    return rows;
}

float as_float(Word bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }
double as_double(Word bits) { return std::bit_cast<double>(bits); }
Word bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
Word bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }

namespace {

// A binary format with `fraction` bits after the point and the given exponent bias.
double small_value(Word bits, int fraction, int exponent_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const auto mantissa = static_cast<double>(bits & ((Word{1} << fraction) - 1));
    const int exponent = static_cast<int>(bits >> fraction) & ((1 << exponent_bits) - 1);
    const double sign = (bits >> (fraction + exponent_bits)) & 1 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - fraction);
    return sign * std::ldexp(mantissa + std::ldexp(1.0, fraction), exponent - bias - fraction);
}

Word small_bits(double value, int fraction, int exponent_bits, Rounding rounding) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const Word sign = std::signbit(value) ? Word{1} << (fraction + exponent_bits) : 0;
    const Word infinity = ((Word{1} << exponent_bits) - 1) << fraction;
    if (std::isnan(value)) return (infinity << 1 | ((Word{1} << (fraction + 1)) - 1)) >> 1;
    const double magnitude = std::abs(rounded(value, fraction + 1, 1 - bias, bias, rounding));
    if (std::isinf(magnitude)) return sign | infinity;
    if (magnitude == 0) return sign;
    int exponent = std::max(std::ilogb(magnitude), 1 - bias);
    const auto mantissa = static_cast<Word>(std::ldexp(magnitude, fraction - exponent));
    // A subnormal's mantissa has no leading bit, and its exponent field is 0.
    const bool normal = mantissa >> fraction != 0;
    return sign | (normal ? static_cast<Word>(exponent + bias) << fraction : 0) |
           (mantissa & ((Word{1} << fraction) - 1));
}

}  // namespace

double f16_value(Word bits) { return small_value(bits & 0xFFFF, 10, 5); }
double bf16_value(Word bits) { return small_value(bits & 0xFFFF, 7, 8); }

double rounded(double value, int digits, int lowest, int highest, Rounding rounding) {
    if (std::isnan(value) || std::isinf(value) || value == 0) return value;
    const double magnitude = std::abs(value);
    const int exponent = std::max(std::ilogb(magnitude), lowest);
    const double unit = std::ldexp(1.0, exponent - digits + 1);
    const double steps = magnitude / unit;  // exact: unit is a power of two
    const double below = std::floor(steps), rest = steps - below;
    const bool negative = value < 0;
    bool up = false;
    switch (rounding) {
        case Rounding::kNearest:
            up = rest > 0.5 || (rest == 0.5 && std::fmod(below, 2) == 1);
            break;
        case Rounding::kZero:
            break;
        case Rounding::kDown:
            up = negative && rest > 0;
            break;
        case Rounding::kUp:
            up = !negative && rest > 0;
            break;
    }
    double result = (below + (up ? 1 : 0)) * unit;
    const double largest = std::ldexp(2 - std::ldexp(1.0, 1 - digits), highest);
    if (result > largest) {
        const bool away = rounding == Rounding::kNearest ||
                          (rounding == Rounding::kDown && negative) ||
                          (rounding == Rounding::kUp && !negative);
        result = away ? HUGE_VAL : largest;
    }
    return std::copysign(result, value);
}

Word f32_bits(double value, Rounding rounding) { return small_bits(value, 23, 8, rounding); }
Word f16_bits(double value, Rounding rounding) { return small_bits(value, 10, 5, rounding); }
Word bf16_bits(double value, Rounding rounding) { return small_bits(value, 7, 8, rounding); }

double value_of(Kind kind, Word bits) {
    switch (kind) {
        case Kind::kF64:
            return as_double(bits);
        case Kind::kF32:
            return as_float(bits);
        case Kind::kF16:
            return f16_value(bits);
        case Kind::kBf16:
            return bf16_value(bits);
        default:
            return static_cast<double>(bits);
    }
}

int width_of(const std::string& type) {
    const int digits = std::stoi(type.substr(type.find_first_of("0123456789")));
    return type.size() > 2 && type.substr(type.size() - 2) == "x2" ? 2 * digits : digits;
}

int register_width(const std::string& type) { return std::max(16, width_of(type)); }

Word low_bits(Word value, int width) {
    return width == 64 ? value : value & ((Word{1} << width) - 1);
}

__int128 integer_value(const std::string& type, Word bits) {
    const int width = width_of(type);
    bits = low_bits(bits, width);
    const Word sign = Word{1} << (width - 1);
    const __int128 value = bits;
    return type[0] == 's' && (bits & sign) != 0 ? value - static_cast<__int128>(sign) * 2 : value;
}

float flushed(float value) {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0F, value) : value;
}

const std::vector<Word>& f32_edges() {
    static const std::vector<Word> values = {
        0x00000000, 0x80000000,  // zeros
        0x3F800000, 0xBF800000, 0x40490FDB, 0xC2F6E979, 0x3EAAAAAB,
        0x4B800001,                                      // 2^24 + 2
        0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF,  // subnormals
        0x00800000, 0x80800000,                          // smallest normals
        0x7F7FFFFF, 0xFF7FFFFF,                          // largest
        0x7F800000, 0xFF800000,                          // infinities
        0x7FC00000, 0xFFC01234, 0x7F800001,  // NaNs: quiet, negative with payload, signalling
        0x33800000, 0x5F000000,
    };
    return values;
}

const std::vector<Word>& f64_edges() {
    static const std::vector<Word> values = {
        0x0000000000000000, 0x8000000000000000, 0x3FF0000000000000, 0xBFF0000000000000,
        0x400921FB54442D18, 0xC05EDD3C07EE0B0B, 0x0000000000000001, 0x800FFFFFFFFFFFFF,
        0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x7FF0000000000000,
        0xFFF0000000000000, 0x7FF8000000000000, 0x3FD5555555555555, 0x4340000000000001,
    };
    return values;
}

const std::vector<Word>& f16_edges() {
    static const std::vector<Word> values = {
        0x0000, 0x8000, 0x3C00, 0xBC00, 0x3555, 0xC248, 0x0001, 0x83FF,
        0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFD01, 0x6400,
    };
    return values;
}

const std::vector<Word>& bf16_edges() {
    static const std::vector<Word> values = {
        0x0000, 0x8000, 0x3F80, 0xBF80, 0x3EAB, 0xC049, 0x0001, 0x807F,
        0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFF81, 0x4380,
    };
    return values;
}

const std::vector<Word>& u32_edges() {
    static const std::vector<Word> values = {
        0,          1,          2,          3,          7,          31,
        32,         33,         63,         255,        256,        0x7FFF,
        0x8000,     0xFFFF,     0x10000,    0x12345678, 0x7FFFFFFF, 0x80000000,
        0x80000001, 0xAAAAAAAA, 0xFFFF8000, 0xFFFFFFFE, 0xFFFFFFFF,
    };
    return values;
}

const std::vector<Word>& u64_edges() {
    static const std::vector<Word> values = {
        0,
        1,
        2,
        31,
        32,
        63,
        64,
        65,
        0x7FFFFFFF,
        0x80000000,
        0xFFFFFFFF,
        0x100000000,
        0x123456789ABCDEF0,
        0x7FFFFFFFFFFFFFFF,
        0x8000000000000000,
        0x8000000000000001,
        0xFFFFFFFF00000000,
        0xFFFFFFFFFFFFFFFE,
        0xFFFFFFFFFFFFFFFF,
    };
    return values;
}

const std::vector<Word>& u16_edges() {
    static const std::vector<Word> values = {
        0, 1, 2, 7, 15, 16, 17, 0x00FF, 0x0100, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF,
    };
    return values;
}

Word stored(const Bytes& bytes, std::size_t at, int width) {
    Word value = 0;
    for (int i = 0; i < width / 8; ++i)
        value |= std::to_integer<Word>(bytes[at + static_cast<std::size_t>(i)]) << (8 * i);
    return value;
}

void store(Bytes& bytes, std::size_t at, int width, Word value) {
    for (int i = 0; i < width / 8; ++i)
        bytes[at + static_cast<std::size_t>(i)] = static_cast<std::byte>(value >> (8 * i) & 0xFF);
}

Bytes bytes_of(const std::vector<std::uint32_t>& words) {
    Bytes bytes;
    for (const std::uint32_t word : words)
        for (int shift = 0; shift < 32; shift += 8)
            bytes.push_back(static_cast<std::byte>(word >> shift & 0xFF));
    return bytes;
}

Bytes counted_bytes(std::size_t count) {
    Bytes bytes(count);
    for (std::size_t i = 0; i < count; ++i)
        bytes[i] = static_cast<std::byte>((i * 7 + i / 256 + 3) & 0xFF);
    return bytes;
}

void append(std::vector<Case>& to, std::vector<Case> from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

std::vector<Case> all_cases() {
    std::vector<Case> cases;
    for (const auto list :
         {integer_cases, bit_cases, float_cases, half_cases, conversion_cases, comparison_cases,
          control_cases, memory_cases, atomic_cases, async_copy_cases, warp_cases, matrix_cases})
        append(cases, list());
    return cases;
}

}  // namespace instructions
