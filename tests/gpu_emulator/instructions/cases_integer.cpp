// Integer arithmetic (PTX ISA 9.7.1) and bits (9.7.8 logic and shift, 9.7.1 bit fields, prmt).
#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {
namespace {

using Int128 = __int128;

const std::vector<Word>& edges(int width) {
    return width == 64 ? u64_edges() : width == 32 ? u32_edges() : u16_edges();
}

// op(a, b, c) in unlimited precision; the result keeps its low bits.
using Arithmetic = std::function<Int128(Int128, Int128, Int128)>;

Case arithmetic(const std::string& form,
                const std::string& type,
                int operands,
                int result_width,
                const Arithmetic& op) {
    const int width = width_of(type);
    std::vector<int> in(static_cast<std::size_t>(operands), width);
    Lanes values;
    if (operands == 3) {
        in[2] = result_width;
        values =
            joined(combinations({edges(width), edges(width), {0, 1, 0x7FFF, 0xFFFFFFFFFFFFFFFF}}),
                   random_lanes(64, in, 3));
    } else {
        values = joined(combinations(std::vector<std::vector<Word>>(in.size(), edges(width))),
                        random_lanes(64, in, 2));
    }
    for (auto& row : values)
        for (std::size_t i = 0; i < row.size(); ++i) row[i] = low_bits(row[i], in[i]);
    const std::string third = type[0] + std::to_string(result_width);
    return lane_case(form, in, {result_width}, {}, values, [=](const std::vector<Word>& lane) {
        const Int128 a = integer_value(type, lane[0]),
                     b = operands > 1 ? integer_value(type, lane[1]) : 0,
                     c = operands > 2 ? integer_value(third, lane[2]) : 0;
        return std::vector<Expected>{{low_bits(static_cast<Word>(op(a, b, c)), result_width)}};
    });
}

// Quotients by zero, and of the smallest number by -1, have no result that the manual names.
Case division(const std::string& form, const std::string& type, bool remainder) {
    const int width = width_of(type);
    Lanes values;
    for (const auto& row :
         joined(combinations({edges(width), edges(width)}), random_lanes(64, {width, width}, 5))) {
        const Int128 b = integer_value(type, row[1]);
        if (b == 0 || (b == -1 && integer_value(type, row[0]) == -(Int128{1} << (width - 1))))
            continue;
        values.push_back(row);
    }
    return lane_case(form, {width, width}, {width}, {}, values, [=](const std::vector<Word>& lane) {
        const Int128 a = integer_value(type, lane[0]), b = integer_value(type, lane[1]);
        return std::vector<Expected>{
            {low_bits(static_cast<Word>(remainder ? a % b : a / b), width)}};
    });
}

// "add.cc" leaves its carry for "addc": 64-bit sums in two halves.
Case carried(const std::string& low,
             const std::string& high,
             bool subtract,
             const std::string& form) {
    return lane_case(
        form, {32, 32, 32, 32}, {32, 32}, {},
        joined(combinations({{0, 1, 0x80000000, 0xFFFFFFFF},
                             {0, 1, 0xFFFFFFFF},
                             {0, 1, 0x80000000, 0xFFFFFFFF},
                             {0, 1, 0xFFFFFFFF}}),
               random_lanes(32, {32, 32, 32, 32}, 7)),
        [=](const std::vector<Word>& lane) {
            const Word a = lane[1] << 32 | lane[0], b = lane[3] << 32 | lane[2];
            const Word sum = subtract ? a - b : a + b;
            return std::vector<Expected>{{sum & 0xFFFFFFFF}, {sum >> 32}};
        },
        low + " %o0, %i0, %i2;\n" + high + " %o1, %i1, %i3;",
        "two halves with " + low + " and " + high);
}

using BitFunction = std::function<Word(const std::vector<Word>&)>;

Case bits(const std::string& form,
          const std::vector<int>& in,
          int out,
          const Lanes& values,
          const BitFunction& op,
          const std::string& body = "",
          const std::string& name = "") {
    return lane_case(
        form, in, {out}, {}, values,
        [=](const std::vector<Word>& lane) {
            return std::vector<Expected>{{low_bits(op(lane), out)}};
        },
        body, name);
}

std::vector<Case> logic_cases() {
    std::vector<Case> cases;
    for (const int width : {16, 32, 64}) {
        const std::string type = ".b" + std::to_string(width);
        const Lanes pairs = joined(combinations({edges(width), edges(width)}),
                                   random_lanes(32, {width, width}, 11));
        const Lanes single = joined(combinations({edges(width)}), random_lanes(32, {width}, 12));
        cases.push_back(bits("and" + type, {width, width}, width, pairs,
                             [](const auto& v) { return v[0] & v[1]; }));
        cases.push_back(bits("or" + type, {width, width}, width, pairs,
                             [](const auto& v) { return v[0] | v[1]; }));
        cases.push_back(bits("xor" + type, {width, width}, width, pairs,
                             [](const auto& v) { return v[0] ^ v[1]; }));
        cases.push_back(
            bits("not" + type, {width}, width, single, [](const auto& v) { return ~v[0]; }));
        cases.push_back(bits("cnot" + type, {width}, width, single,
                             [](const auto& v) { return v[0] == 0 ? 1 : 0; }));
    }
    const Lanes truth = combinations({{0, 1}, {0, 1}});
    cases.push_back(bits("and.pred", {1, 1}, 1, truth, [](const auto& v) { return v[0] & v[1]; }));
    cases.push_back(bits("or.pred", {1, 1}, 1, truth, [](const auto& v) { return v[0] | v[1]; }));
    cases.push_back(bits("xor.pred", {1, 1}, 1, truth, [](const auto& v) { return v[0] ^ v[1]; }));
    cases.push_back(
        bits("not.pred", {1}, 1, combinations({{0, 1}}), [](const auto& v) { return v[0] ^ 1; }));

    // The table's bit at 4 a + 2 b + c.
    for (const int table : {0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x1B, 0x2D, 0xF0, 0xCC, 0xAA, 0x00, 0xFF})
        cases.push_back(bits(
            "lop3.b32", {32, 32, 32}, 32,
            joined({{0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA}}, random_lanes(31, {32, 32, 32}, 13)),
            [table](const auto& v) {
                Word result = 0;
                for (int bit = 0; bit < 32; ++bit) {
                    const auto index =
                        (v[0] >> bit & 1) * 4 + (v[1] >> bit & 1) * 2 + (v[2] >> bit & 1);
                    result |= static_cast<Word>(table >> index & 1) << bit;
                }
                return result;
            },
            "lop3.b32 %o0, %i0, %i1, %i2, " + std::to_string(table) + ";",
            "table " + std::to_string(table)));
    return cases;
}

std::vector<Case> shift_cases() {
    std::vector<Case> cases;
    const std::vector<Word> amounts = {0,  1,  7,  8,  15,  16,  17,         31,        32,
                                       33, 63, 64, 65, 255, 256, 0x80000000, 0xFFFFFFFF};
    for (const int width : {16, 32, 64}) {
        const Lanes values = combinations({edges(width), amounts});
        const auto w = static_cast<Word>(width);
        // Amounts beyond the width are clamped to it.
        cases.push_back(bits("shl.b" + std::to_string(width), {width, 32}, width, values,
                             [=](const auto& v) { return v[1] >= w ? 0 : v[0] << v[1]; }));
        for (const char* letter : {"u", "b"})
            cases.push_back(bits("shr." + (letter + std::to_string(width)), {width, 32}, width,
                                 values,
                                 [=](const auto& v) { return v[1] >= w ? 0 : v[0] >> v[1]; }));
        cases.push_back(
            bits("shr.s" + std::to_string(width), {width, 32}, width, values, [=](const auto& v) {
                const auto amount = static_cast<int>(std::min(v[1], w - 1));
                const Int128 a = integer_value(std::string("s") + std::to_string(width), v[0]);
                return static_cast<Word>(a >> amount);
            }));
    }
    // The 64 bits b:a shifted; .l keeps the upper half, .r the lower.
    const Lanes funnel = joined(combinations({{0x89ABCDEF, 0xFFFFFFFF}, {0x01234567, 0}, amounts}),
                                random_lanes(32, {32, 32, 32}, 17));
    for (const bool wrap : {false, true})
        for (const bool left : {false, true})
            cases.push_back(bits(
                std::string("shf.") + (left ? "l" : "r") + (wrap ? ".wrap" : ".clamp") + ".b32",
                {32, 32, 32}, 32, funnel, [=](const auto& v) {
                    const Word amount = wrap ? v[2] & 31 : std::min<Word>(v[2], 32);
                    const Word both = v[1] << 32 | v[0];
                    return left ? (both << amount) >> 32 : both >> amount;
                }));
    return cases;
}

std::vector<Case> field_cases() {
    std::vector<Case> cases;
    const std::vector<Word> positions = {0, 1, 5, 16, 31, 32, 33, 63, 64, 255, 256 + 4};
    const std::vector<Word> lengths = {0, 1, 8, 31, 32, 33, 64, 255, 256 + 8};
    for (const int width : {32, 64}) {
        const auto number = std::to_string(width);
        const std::vector<Word> fields =
            width == 32
                ? std::vector<Word>{0x89ABCDEF, 0x7FFFFFFF, 0x80000001}
                : std::vector<Word>{0x89ABCDEF01234567, 0x7FFFFFFFFFFFFFFF, 0x8000000000000001};
        const Lanes values = combinations({fields, positions, lengths});
        for (const bool is_signed : {false, true})
            cases.push_back(bits(
                (is_signed ? "bfe.s" : "bfe.u") + number, {width, 32, 32}, width, values,
                [=](const auto& v) {
                    // Positions and lengths are one byte. Bits from beyond the register are the
                    // sign.
                    const int position = v[1] & 0xFF, length = v[2] & 0xFF, msb = width - 1;
                    Word sign = 0;
                    if (is_signed && length > 0)
                        sign = v[0] >> std::min(position + length - 1, msb) & 1;
                    Word result = 0;
                    for (int i = 0; i <= msb; ++i)
                        result |=
                            (i < length && position + i <= msb ? v[0] >> (position + i) & 1 : sign)
                            << i;
                    return result;
                }));
        cases.push_back(
            bits("bfi.b" + number, {width, width, 32, 32}, width,
                 combinations({fields,
                               {0, 0x5A5A5A5A5A5A5A5A & ((width == 64 ? 0 : Word{1} << 32) - 1)},
                               positions,
                               lengths}),
                 [=](const auto& v) {
                     const int position = v[2] & 0xFF, length = v[3] & 0xFF;
                     Word result = v[1];
                     for (int i = 0; i < length && position + i < width; ++i) {
                         result &= ~(Word{1} << (position + i));
                         result |= (v[0] >> i & 1) << (position + i);
                     }
                     return result;
                 }));
        const Lanes single = joined(combinations({edges(width)}), random_lanes(32, {width}, 19));
        cases.push_back(bits("popc.b" + number, {width}, 32, single,
                             [](const auto& v) { return static_cast<Word>(std::popcount(v[0])); }));
        cases.push_back(bits("clz.b" + number, {width}, 32, single, [=](const auto& v) {
            return static_cast<Word>(std::countl_zero(v[0]) - (64 - width));
        }));
        cases.push_back(bits("brev.b" + number, {width}, width, single, [=](const auto& v) {
            Word result = 0;
            for (int i = 0; i < width; ++i) result |= (v[0] >> i & 1) << (width - 1 - i);
            return result;
        }));
        for (const bool is_signed : {false, true})
            for (const bool shift : {false, true})
                cases.push_back(bits(std::string("bfind.") + (shift ? "shiftamt." : "") +
                                         (is_signed ? "s" : "u") + number,
                                     {width}, 32, single, [=](const auto& v) {
                                         // Of negative numbers the highest zero.
                                         Word a = v[0];
                                         if (is_signed && (a >> (width - 1) & 1) != 0)
                                             a = low_bits(~a, width);
                                         if (a == 0) return Word{0xFFFFFFFF};
                                         const int at = 63 - std::countl_zero(a);
                                         return static_cast<Word>(shift ? width - 1 - at : at);
                                     }));
    }
    const Lanes extends = combinations({{0x89ABCDEF, 0x7FFFFFFF, 0x80000001, 0x00000080},
                                        {0, 1, 7, 8, 16, 31, 32, 33, 40, 0xFFFFFFFF}});
    for (const bool wrap : {false, true})
        for (const bool is_signed : {false, true})
            cases.push_back(bits(
                std::string("szext.") + (wrap ? "wrap." : "clamp.") + (is_signed ? "s32" : "u32"),
                {32, 32}, 32, extends, [=](const auto& v) {
                    const Word n = wrap ? v[1] & 31 : std::min<Word>(v[1], 32);
                    if (n == 0) return Word{0};
                    Word low = low_bits(v[0], static_cast<int>(n));
                    if (is_signed && (low >> (n - 1) & 1) != 0) low |= ~Word{0} << n;
                    return low;
                }));
    for (const bool wrap : {false, true})
        cases.push_back(bits(
            std::string("bmsk.") + (wrap ? "wrap" : "clamp") + ".b32", {32, 32}, 32,
            combinations({{0, 1, 4, 31, 32, 40}, {0, 1, 8, 28, 31, 32, 33}}), [=](const auto& v) {
                const Word at = wrap ? v[0] & 31 : v[0], n = wrap ? v[1] & 31 : v[1];
                if (at >= 32) return Word{0};
                const Word ones = n >= 32 ? 0xFFFFFFFF : (Word{1} << n) - 1;
                return low_bits(ones << at, 32);
            }));
    return cases;
}

Word byte_of(const std::vector<Word>& v, Word index) {
    return (v[1] << 32 | v[0]) >> (index * 8) & 0xFF;
}

std::vector<Case> permute_cases() {
    std::vector<Case> cases;
    std::vector<Word> selectors = {0x3210, 0x7654, 0x0123, 0x5410, 0x7632,
                                   0x4040, 0xBA98, 0xFEDC, 0x8F80, 0xFFFF3210};
    const Lanes values =
        joined(combinations({{0x8899AABB, 0x11223344}, {0xCCDDEEFF, 0x55667788}, selectors}),
               random_lanes(32, {32, 32, 32}, 23));
    cases.push_back(bits("prmt.b32", {32, 32, 32}, 32, values, [](const auto& v) {
        Word result = 0;
        for (int i = 0; i < 4; ++i) {
            const Word selector = v[2] >> (4 * i) & 0xF;
            Word byte = byte_of(v, selector & 7);
            // The selector's top bit replicates the byte's sign.
            if ((selector & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
            result |= byte << (8 * i);
        }
        return result;
    }));
    // Bytes 3..0 of the result for the selector's low bits 0..3; indices 4..7 are b's bytes.
    struct Mode {
        const char* name;
        int bytes[4][4];
    };
    const Mode modes[] = {
        {"f4e", {{3, 2, 1, 0}, {4, 3, 2, 1}, {5, 4, 3, 2}, {6, 5, 4, 3}}},
        {"b4e", {{5, 6, 7, 0}, {6, 7, 0, 1}, {7, 0, 1, 2}, {0, 1, 2, 3}}},
        {"rc8", {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}}},
        {"ecl", {{3, 2, 1, 0}, {3, 2, 1, 1}, {3, 2, 2, 2}, {3, 3, 3, 3}}},
        {"ecr", {{0, 0, 0, 0}, {1, 1, 1, 0}, {2, 2, 1, 0}, {3, 2, 1, 0}}},
        {"rc16", {{1, 0, 1, 0}, {3, 2, 3, 2}, {1, 0, 1, 0}, {3, 2, 3, 2}}},
    };
    for (const Mode& mode : modes)
        cases.push_back(bits(std::string("prmt.b32.") + mode.name, {32, 32, 32}, 32,
                             combinations({{0x8899AABB}, {0xCCDDEEFF}, {0, 1, 2, 3, 0xFFFFFFFD}}),
                             [mode](const auto& v) {
                                 Word result = 0;
                                 for (int i = 0; i < 4; ++i)
                                     result |=
                                         byte_of(v, static_cast<Word>(mode.bytes[v[2] & 3][3 - i]))
                                         << (8 * i);
                                 return result;
                             }));
    return cases;
}

}  // namespace

std::vector<Case> integer_cases() {
    std::vector<Case> cases;
    const auto all = {"s16", "u16", "s32", "u32", "s64", "u64"};
    for (const std::string type : all) {
        const int width = width_of(type);
        cases.push_back(
            arithmetic("add." + type, type, 2, width, [](auto a, auto b, auto) { return a + b; }));
        cases.push_back(
            arithmetic("sub." + type, type, 2, width, [](auto a, auto b, auto) { return a - b; }));
        cases.push_back(arithmetic("min." + type, type, 2, width,
                                   [](auto a, auto b, auto) { return std::min(a, b); }));
        cases.push_back(arithmetic("max." + type, type, 2, width,
                                   [](auto a, auto b, auto) { return std::max(a, b); }));
        // Two 64-bit factors of one sign may need 128 bits: only the low ones are kept.
        const auto product = [](Int128 a, Int128 b) {
            return static_cast<Int128>(static_cast<unsigned __int128>(a) *
                                       static_cast<unsigned __int128>(b));
        };
        cases.push_back(arithmetic("mul.lo." + type, type, 2, width,
                                   [=](auto a, auto b, auto) { return product(a, b); }));
        cases.push_back(arithmetic("mad.lo." + type, type, 3, width, [=](auto a, auto b, auto c) {
            return static_cast<Int128>(static_cast<unsigned __int128>(product(a, b)) +
                                       static_cast<unsigned __int128>(c));
        }));
        const auto high = [=](Int128 a, Int128 b) {
            const auto bits = static_cast<unsigned __int128>(product(a, b)) >> width;
            return static_cast<Int128>(bits);
        };
        cases.push_back(arithmetic("mul.hi." + type, type, 2, width,
                                   [=](auto a, auto b, auto) { return high(a, b); }));
        cases.push_back(arithmetic("mad.hi." + type, type, 3, width, [=](auto a, auto b, auto c) {
            return static_cast<Int128>(static_cast<unsigned __int128>(high(a, b)) +
                                       static_cast<unsigned __int128>(c));
        }));
        if (width < 64) {
            cases.push_back(arithmetic("mul.wide." + type, type, 2, 2 * width,
                                       [=](auto a, auto b, auto) { return product(a, b); }));
            cases.push_back(arithmetic("mad.wide." + type, type, 3, 2 * width,
                                       [=](auto a, auto b, auto c) { return product(a, b) + c; }));
        }
        cases.push_back(division("div." + type, type, false));
        cases.push_back(division("rem." + type, type, true));
        if (type[0] == 's') {
            cases.push_back(
                arithmetic("neg." + type, type, 1, width, [](auto a, auto, auto) { return -a; }));
            // The smallest number has no opposite and stays.
            cases.push_back(arithmetic("abs." + type, type, 1, width,
                                       [](auto a, auto, auto) { return a < 0 ? -a : a; }));
        }
    }
    for (const std::string type : {"u32", "s32"}) {
        cases.push_back(arithmetic("sad." + type, type, 3, 32, [](auto a, auto b, auto c) {
            return c + (a < b ? b - a : a - b);
        }));
        for (const bool subtract : {false, true}) {
            const std::string low = (subtract ? "sub.cc." : "add.cc.") + type,
                              high = (subtract ? "subc." : "addc.") + type;
            cases.push_back(carried(low, high, subtract, low));
            cases.push_back(carried(low, high, subtract, high));
            const std::string middle = (subtract ? "subc.cc." : "addc.cc.") + type;
            cases.push_back(carried(low, middle, subtract, middle));
        }
    }
    return cases;
}

std::vector<Case> bit_cases() {
    std::vector<Case> cases = logic_cases();
    append(cases, shift_cases());
    append(cases, field_cases());
    append(cases, permute_cases());
    return cases;
}

}  // namespace instructions
