// setp, set, selp, slct (PTX ISA 9.7.6) and their predicates.
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {
namespace {

using Int128 = __int128;

bool is_float(const std::string& type) { return type[0] == 'f' || type == "bf16"; }

struct Comparison {
    std::string name;
    bool unordered;  // holds if an operand is a NaN
    bool less, equal, greater;
};

const std::vector<Comparison>& comparisons() {
    static const std::vector<Comparison> all = {
        {"eq", false, false, true, false}, {"ne", false, true, false, true},
        {"lt", false, true, false, false}, {"le", false, true, true, false},
        {"gt", false, false, false, true}, {"ge", false, false, true, true},
        {"lo", false, true, false, false}, {"ls", false, true, true, false},
        {"hi", false, false, false, true}, {"hs", false, false, true, true},
        {"equ", true, false, true, false}, {"neu", true, true, false, true},
        {"ltu", true, true, false, false}, {"leu", true, true, true, false},
        {"gtu", true, false, false, true}, {"geu", true, false, true, true},
        {"num", false, true, true, true},  {"nan", true, false, false, false},
    };
    return all;
}

bool allowed(const Comparison& c, const std::string& type) {
    if (is_float(type)) return c.name[0] != 'h' && c.name != "lo" && c.name != "ls";
    const bool unordered_name = c.unordered || c.name == "num";
    if (unordered_name) return false;
    if (type[0] == 'b') return c.name == "eq" || c.name == "ne";
    const bool unsigned_name = c.name[0] == 'h' || c.name == "lo" || c.name == "ls";
    return type[0] == 'u' || !unsigned_name;
}

template <class T>
bool ordered(const Comparison& c, T a, T b) {
    return a < b ? c.less : a == b ? c.equal : c.greater;
}

bool holds(const Comparison& c, const std::string& type, bool ftz, Word a, Word b) {
    const int width = width_of(type);
    if (is_float(type)) {
        const Kind kind = type == "bf16" ? Kind::kBf16
                          : width == 16  ? Kind::kF16
                          : width == 32  ? Kind::kF32
                                         : Kind::kF64;
        double x = value_of(kind, a), y = value_of(kind, b);
        if (std::isnan(x) || std::isnan(y)) return c.unordered;
        if (ftz) {
            const double smallest = std::ldexp(1.0, width == 16 ? -14 : -126);
            if (std::abs(x) < smallest) x = 0;
            if (std::abs(y) < smallest) y = 0;
        }
        return ordered(c, x, y);
    }
    const auto number = [&](Word bits) {
        const Word sign = Word{1} << (width - 1);
        return static_cast<Int128>(bits) -
               (type[0] == 's' && (bits & sign) != 0 ? static_cast<Int128>(sign) * 2 : 0);
    };
    return ordered(c, number(a), number(b));
}

Lanes values(const std::string& type) {
    const int width = width_of(type);
    if (is_float(type)) {
        const auto& edges = type == "bf16" ? bf16_edges()
                            : width == 16  ? f16_edges()
                            : width == 32  ? f32_edges()
                                           : f64_edges();
        return joined(combinations({edges, edges}), random_lanes(32, {width, width}, 103));
    }
    const auto& edges = width == 16 ? u16_edges() : width == 32 ? u32_edges() : u64_edges();
    return joined(combinations({edges, edges}), random_lanes(32, {width, width}, 105));
}

std::vector<Expected> one(bool value) { return {{value ? Word{1} : Word{0}}}; }

}  // namespace

std::vector<Case> comparison_cases() {
    std::vector<Case> cases;
    for (const std::string type : {"b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64",
                                   "f32", "f64", "f16", "bf16"}) {
        const int width = width_of(type);
        const int arch = type == "bf16" ? 90 : 80;
        const Lanes all = values(type);
        for (const Comparison& c : comparisons()) {
            if (!allowed(c, type)) continue;
            for (const bool ftz : {false, true}) {
                if (ftz && type != "f32" && type != "f16") continue;
                const std::string end = std::string(ftz ? ".ftz." : ".") + type;
                const auto plain = [=](const std::vector<Word>& v) {
                    return holds(c, type, ftz, v[0], v[1]);
                };
                cases.push_back(
                    needing(arch, lane_case("setp." + c.name + end, {width, width}, {1}, {}, all,
                                            [=](const auto& v) { return one(plain(v)); })));
                // The second destination gets the opposite; fp16 pairs have other uses for it.
                if (type != "f16" && type != "bf16")
                    cases.push_back(lane_case(
                        "setp." + c.name + end, {width, width}, {1, 1}, {}, all,
                        [=](const auto& v) {
                            return std::vector<Expected>{{plain(v) ? 1U : 0U},
                                                         {plain(v) ? 0U : 1U}};
                        },
                        "setp." + c.name + end + " %o0|%o1, %i0, %i1;", "with both destinations"));
                Lanes with_predicate;
                for (std::size_t i = 0; i < all.size(); ++i)
                    with_predicate.push_back({all[i][0], all[i][1], (i * 7 / 3) & 1});
                struct Combination {
                    const char* name;
                    bool (*both)(bool, bool);
                };
                for (const Combination& combination :
                     {Combination{"and", [](bool p, bool q) { return p && q; }},
                      Combination{"or", [](bool p, bool q) { return p || q; }},
                      Combination{"xor", [](bool p, bool q) { return p != q; }}}) {
                    const auto both = combination.both;
                    cases.push_back(needing(
                        arch,
                        lane_case("setp." + c.name + "." + combination.name + end,
                                  {width, width, 1}, {1}, {}, with_predicate,
                                  [=](const auto& v) { return one(both(plain(v), v[2] != 0)); })));
                }
                // .ftz may stand before or after the result's type.
                for (const std::string result : {"u32", "s32", "f32"})
                    for (const std::string& tail :
                         ftz ? std::vector<std::string>{".ftz." + result + "." + type,
                                                        "." + result + ".ftz." + type}
                             : std::vector<std::string>{"." + result + "." + type}) {
                        if (result == "f32" && (type == "f16" || type == "bf16")) continue;
                        cases.push_back(needing(
                            arch, lane_case("set." + c.name + tail, {width, width}, {32}, {}, all,
                                            [=](const auto& v) {
                                                const Word yes =
                                                    result == "f32" ? 0x3F800000 : 0xFFFFFFFF;
                                                return std::vector<Expected>{{plain(v) ? yes : 0}};
                                            })));
                    }
            }
        }
    }
    for (const std::string type :
         {"b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"}) {
        const int width = width_of(type);
        cases.push_back(lane_case(
            "selp." + type, {width, width, 1}, {width}, {},
            joined(random_lanes(30, {width, width, 1}, 107), {{1, 2, 0}, {1, 2, 1}}),
            [](const auto& v) { return std::vector<Expected>{{v[2] != 0 ? v[0] : v[1]}}; }));
        cases.push_back(lane_case("slct." + type + ".s32", {width, width, 32}, {width}, {},
                                  joined(random_lanes(29, {width, width, 32}, 109),
                                         {{1, 2, 0}, {1, 2, 0x80000000}, {1, 2, 0x7FFFFFFF}}),
                                  [](const auto& v) {
                                      return std::vector<Expected>{
                                          {(v[2] >> 31) == 0 ? v[0] : v[1]}};
                                  }));
    }
    // -0 counts as not negative; a NaN chooses the second.
    cases.push_back(lane_case(
        "slct.b32.f32", {32, 32, 32}, {32}, {}, combinations({{1}, {2}, f32_edges()}),
        [](const auto& v) { return std::vector<Expected>{{as_float(v[2]) >= 0 ? v[0] : v[1]}}; }));
    return cases;
}

}  // namespace instructions
