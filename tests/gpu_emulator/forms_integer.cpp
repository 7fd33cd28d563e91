// Integer, bit and predicate forms.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "tests/gpu_emulator/forms.h"

namespace gpu_emulator {
namespace {

template <class T>
struct Wider;
template <>
struct Wider<std::int16_t> {
    using Type = std::int32_t;
};
template <>
struct Wider<std::uint16_t> {
    using Type = std::uint32_t;
};
template <>
struct Wider<std::int32_t> {
    using Type = std::int64_t;
};
template <>
struct Wider<std::uint32_t> {
    using Type = std::uint64_t;
};
template <>
struct Wider<std::int64_t> {
    using Type = __int128;
};
template <>
struct Wider<std::uint64_t> {
    using Type = unsigned __int128;
};

// The arithmetic wraps: it is done unsigned, in at least 32 bits.
template <class T>
using Wrapping = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;

template <class T>
void add_arithmetic(FormTable& t, const std::string& type) {
    using W = Wrapping<T>;
    using Two = T(T, T);
    constexpr int bits = sizeof(T) * 8;
    using X = typename Wider<T>::Type;
    t.add<Two>("add." + type, [](T a, T b) { return T(W(a) + W(b)); });
    t.add<Two>("sub." + type, [](T a, T b) { return T(W(a) - W(b)); });
    t.add<Two>("mul.lo." + type, [](T a, T b) { return T(W(a) * W(b)); });
    t.add<Two>("mul.hi." + type, [](T a, T b) { return T((X(a) * X(b)) >> bits); });
    t.add<T(T, T, T)>("mad.lo." + type, [](T a, T b, T c) { return T(W(a) * W(b) + W(c)); });
    t.add<T(T, T, T)>("mad.hi." + type,
                      [](T a, T b, T c) { return T(W(T((X(a) * X(b)) >> bits)) + W(c)); });
    if constexpr (sizeof(T) < 8) {
        using U = std::make_unsigned_t<X>;
        t.add<X(T, T)>("mul.wide." + type, [](T a, T b) { return X(X(a) * X(b)); });
        t.add<X(T, T, X)>("mad.wide." + type,
                          [](T a, T b, X c) { return X(U(X(X(a) * X(b))) + U(c)); });
    }
    // Division by zero gives all ones on the hardware at hand; PTX leaves it open.
    t.add<Two>("div." + type, [](T a, T b) {
        if (b == 0) return T(-1);
        if (std::is_signed_v<T> && b == T(-1)) return T(W(0) - W(a));
        return T(a / b);
    });
    t.add<Two>("rem." + type, [](T a, T b) {
        if (b == 0) return a;
        if (std::is_signed_v<T> && b == T(-1)) return T(0);
        return T(a % b);
    });
    t.add<Two>("min." + type, [](T a, T b) { return std::min(a, b); });
    t.add<Two>("max." + type, [](T a, T b) { return std::max(a, b); });
    if constexpr (std::is_signed_v<T>) {
        t.add<T(T)>("neg." + type, [](T a) { return T(W(0) - W(a)); });
        t.add<T(T)>("abs." + type, [](T a) { return a < 0 ? T(W(0) - W(a)) : a; });
    }
    // Shifts by the width or more give 0, or the sign everywhere.
    t.add<T(T, std::uint32_t)>("shr." + type, [](T a, std::uint32_t n) {
        if (n >= std::uint32_t(bits)) return T(a < 0 ? -1 : 0);
        return T(a >> n);
    });
    t.add<T(T, T, std::int32_t)>("slct." + type + ".s32",
                                 [](T a, T b, std::int32_t c) { return c >= 0 ? a : b; });
}

template <class T>
void add_bits(FormTable& t, const std::string& width) {
    using Two = T(T, T);
    constexpr std::uint32_t bits = sizeof(T) * 8;
    t.add<Two>("and.b" + width, [](T a, T b) { return T(a & b); });
    t.add<Two>("or.b" + width, [](T a, T b) { return T(a | b); });
    t.add<Two>("xor.b" + width, [](T a, T b) { return T(a ^ b); });
    t.add<T(T)>("not.b" + width, [](T a) { return T(~a); });
    t.add<T(T)>("cnot.b" + width, [](T a) { return T(a == 0); });
    static constexpr auto left = [](T a, std::uint32_t n) { return n >= bits ? T(0) : T(a << n); };
    static constexpr auto right = [](T a, std::uint32_t n) { return n >= bits ? T(0) : T(a >> n); };
    t.add<T(T, std::uint32_t)>("shl.b" + width, left);
    t.add<T(T, std::uint32_t)>("shr.b" + width, right);
    if constexpr (sizeof(T) >= 4) {
        t.add<std::uint32_t(T)>("popc.b" + width, [](T a) { return std::popcount(a); });
        t.add<std::uint32_t(T)>("clz.b" + width, [](T a) { return std::countl_zero(a); });
        t.add<T(T)>("brev.b" + width, [](T a) {
            T r = 0;
            for (std::uint32_t i = 0; i < bits; ++i) r = T(r << 1) | ((a >> i) & 1);
            return r;
        });
        // Position and length count modulo 256; what lies beyond the word is cut off.
        t.add<T(T, T, std::uint32_t, std::uint32_t)>(
            "bfi.b" + width, [](T a, T b, std::uint32_t c, std::uint32_t d) {
                const std::uint32_t at = c & 255, n = d & 255;
                if (at >= bits || n == 0) return b;
                const T ones = n >= bits ? T(~T(0)) : T((T(1) << n) - 1);
                const T mask = T(ones << at);
                return T((b & ~mask) | ((a << at) & mask));
            });
    }
}

template <class T>
void add_extract(FormTable& t, const std::string& type) {
    using U = std::make_unsigned_t<T>;
    constexpr std::uint32_t bits = sizeof(T) * 8;
    t.add<T(T, std::uint32_t, std::uint32_t)>(
        "bfe." + type, [](T a, std::uint32_t b, std::uint32_t c) {
            const std::uint32_t at = b & 255, n = c & 255;
            if (n == 0) return T(0);
            // Positions beyond the word repeat the sign, or are zero.
            const bool negative =
                std::is_signed_v<T> && ((U(a) >> std::min(at + n - 1, bits - 1)) & 1) != 0;
            U r = at >= bits ? U(0) : U(U(a) >> at);
            const std::uint32_t kept = std::min(n, at >= bits ? 0 : bits - at);
            const U mask = kept >= bits ? U(~U(0)) : U((U(1) << kept) - 1);
            r &= mask;
            return T(negative ? U(r | U(~mask)) : r);
        });
    t.add<std::uint32_t(T)>("bfind." + type, [](T a) {
        const U v = std::is_signed_v<T> && a < 0 ? U(~U(a)) : U(a);
        return v == 0 ? 0xffffffffu : bits - 1 - std::uint32_t(std::countl_zero(v));
    });
    t.add<std::uint32_t(T)>("bfind.shiftamt." + type, [](T a) {
        const U v = std::is_signed_v<T> && a < 0 ? U(~U(a)) : U(a);
        return v == 0 ? 0xffffffffu : std::uint32_t(std::countl_zero(v));
    });
}

struct Lop3 {
    static Step step(Block&, std::uint64_t* r, const Op& op) {
        const auto a = get<std::uint32_t>(r, op.slots[1]), b = get<std::uint32_t>(r, op.slots[2]),
                   c = get<std::uint32_t>(r, op.slots[3]),
                   table = get<std::uint32_t>(r, op.slots[4]);
        std::uint32_t d = 0;
        for (std::uint32_t i = 0; i < 8; ++i) {
            if (((table >> i) & 1) == 0) continue;
            d |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
        }
        put(r, op.slots[0], d);
        return Step::kNext;
    }
};

std::uint32_t permute(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
    const std::uint64_t bytes = (std::uint64_t(b) << 32) | a;
    std::uint32_t d = 0;
    for (int i = 0; i < 4; ++i) {
        const std::uint32_t nibble = selector >> (4 * i);
        std::uint32_t byte = std::uint32_t(bytes >> (8 * (nibble & 7))) & 255;
        if ((nibble & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
        d |= byte << (8 * i);
    }
    return d;
}

template <class T>
void add_select(FormTable& t, const std::string& type) {
    t.add<T(T, T, bool)>("selp." + type, [](T a, T b, bool p) { return p ? a : b; });
}

void add_predicates(FormTable& t) {
    using Two = bool(bool, bool);
    t.add<Two>("and.pred", [](bool a, bool b) { return a && b; });
    t.add<Two>("or.pred", [](bool a, bool b) { return a || b; });
    t.add<Two>("xor.pred", [](bool a, bool b) { return a != b; });
    t.add<bool(bool)>("not.pred", [](bool a) { return !a; });
    t.add<bool(bool)>("mov.pred", [](bool a) { return a; });
}

}  // namespace

void add_integer_forms(FormTable& t) {
    add_arithmetic<std::int16_t>(t, "s16");
    add_arithmetic<std::uint16_t>(t, "u16");
    add_arithmetic<std::int32_t>(t, "s32");
    add_arithmetic<std::uint32_t>(t, "u32");
    add_arithmetic<std::int64_t>(t, "s64");
    add_arithmetic<std::uint64_t>(t, "u64");
    add_bits<std::uint16_t>(t, "16");
    add_bits<std::uint32_t>(t, "32");
    add_bits<std::uint64_t>(t, "64");
    add_extract<std::int32_t>(t, "s32");
    add_extract<std::uint32_t>(t, "u32");
    add_extract<std::int64_t>(t, "s64");
    add_extract<std::uint64_t>(t, "u64");
    add_predicates(t);
    for (const char* type : {"b16", "s16", "u16"}) add_select<std::uint16_t>(t, type);
    for (const char* type : {"b32", "s32", "u32", "f32"}) add_select<std::uint32_t>(t, type);
    for (const char* type : {"b64", "s64", "u64", "f64"}) add_select<std::uint64_t>(t, type);
    t.add("lop3.b32", Form{"w = w w w w", &Lop3::step});
    t.add<std::uint32_t(std::uint32_t, std::uint32_t, std::uint32_t)>(
        "prmt.b32",
        [](std::uint32_t a, std::uint32_t b, std::uint32_t c) { return permute(a, b, c); });
    using Funnel = std::uint32_t(std::uint32_t, std::uint32_t, std::uint32_t);
    t.add<Funnel>("shf.l.wrap.b32", [](std::uint32_t a, std::uint32_t b, std::uint32_t n) {
        return std::uint32_t(((std::uint64_t(b) << 32 | a) << (n & 31)) >> 32);
    });
    t.add<Funnel>("shf.r.wrap.b32", [](std::uint32_t a, std::uint32_t b, std::uint32_t n) {
        return std::uint32_t((std::uint64_t(b) << 32 | a) >> (n & 31));
    });
    t.add<Funnel>("shf.l.clamp.b32", [](std::uint32_t a, std::uint32_t b, std::uint32_t n) {
        return std::uint32_t(((std::uint64_t(b) << 32 | a) << std::min(n, 32u)) >> 32);
    });
    t.add<Funnel>("shf.r.clamp.b32", [](std::uint32_t a, std::uint32_t b, std::uint32_t n) {
        return std::uint32_t((std::uint64_t(b) << 32 | a) >> std::min(n, 32u));
    });
}

}  // namespace gpu_emulator
