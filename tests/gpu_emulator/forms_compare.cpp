// setp and set: comparisons of integers and floats.
#include <cmath>
#include <cstdint>

#include "tests/gpu_emulator/floats.h"
#include "tests/gpu_emulator/forms.h"

namespace gpu_emulator {
namespace {

// d|q = a CMP b: q is the complement.
template <class T, class Compare>
Step setp(Block&, std::uint64_t* r, const Op& op) {
    const bool v = Compare{}(get<T>(r, op.slots[2]), get<T>(r, op.slots[3]));
    put(r, op.slots[0], v);
    put(r, op.slots[1], !v);
    return Step::kNext;
}

// Form::mode of a comparison that is combined with a predicate.
enum Combine : std::uint32_t { kAnd, kOr, kXor };

// d|q = (a CMP b) combined with c: q is the complement's combination.
template <class T, class Compare>
Step setp_combined(Block&, std::uint64_t* r, const Op& op) {
    const bool v = Compare{}(get<T>(r, op.slots[2]), get<T>(r, op.slots[3]));
    const bool c = get<bool>(r, op.slots[4]) != op.negated;
    const auto combine = [&](bool x) {
        return op.mode == kAnd ? x && c : op.mode == kOr ? x || c : x != c;
    };
    put(r, op.slots[0], combine(v));
    put(r, op.slots[1], combine(!v));
    return Step::kNext;
}

template <class Result, class Compare>
struct Set {
    template <class T>
    Result operator()(T a, T b) const {
        if constexpr (std::is_same_v<Result, float>) return Compare{}(a, b) ? 1.0f : 0.0f;
        return static_cast<Result>(Compare{}(a, b) ? 0xffffffffu : 0u);
    }
};

// The handlers of one comparison of one type; set_*: null where there is no such form.
struct Comparison {
    char letter;
    Handler setp, setp_combined, set_u32, set_f32;
};

// Apart from the handlers, of which there are hundreds: text takes longer to compile than they do.
void add_comparison(FormTable& t,
                    const std::string& name,
                    const std::string& type,
                    const Comparison& c) {
    const std::string s(1, c.letter), two = "p|p = " + s + " " + s, three = two + " p";
    t.add("setp." + name + "." + type, Form{two, c.setp});
    t.add("setp." + name + ".and." + type, Form{three, c.setp_combined, kAnd});
    t.add("setp." + name + ".or." + type, Form{three, c.setp_combined, kOr});
    t.add("setp." + name + ".xor." + type, Form{three, c.setp_combined, kXor});
    if (c.set_u32 == nullptr) return;
    const std::string operands = "w = " + s + " " + s;
    t.add("set." + name + ".u32." + type, Form{operands, c.set_u32});
    t.add("set." + name + ".f32." + type, Form{operands, c.set_f32});
}

template <class T, class Compare>
Comparison comparison_of(Compare) {
    Comparison c{size_letter<T>(), &setp<T, Compare>, &setp_combined<T, Compare>, nullptr, nullptr};
    if constexpr (sizeof(T) >= 4) {
        c.set_u32 = &Apply<Set<std::uint32_t, Compare>, std::uint32_t, T, T>::step;
        c.set_f32 = &Apply<Set<float, Compare>, float, T, T>::step;
    }
    return c;
}

template <class T>
void add_integers(FormTable& t, const std::string& type) {
    auto add = [&](const char* name, auto compare) {
        add_comparison(t, name, type, comparison_of<T>(compare));
    };
    add("eq", [](T a, T b) { return a == b; });
    add("ne", [](T a, T b) { return a != b; });
    if (type[0] == 'b') return;
    add("lt", [](T a, T b) { return a < b; });
    add("le", [](T a, T b) { return a <= b; });
    add("gt", [](T a, T b) { return a > b; });
    add("ge", [](T a, T b) { return a >= b; });
    if (type[0] == 's') return;
    add("lo", [](T a, T b) { return a < b; });
    add("ls", [](T a, T b) { return a <= b; });
    add("hi", [](T a, T b) { return a > b; });
    add("hs", [](T a, T b) { return a >= b; });
}

struct AsIs {
    template <class T>
    auto operator()(T v) const {
        if constexpr (std::is_floating_point_v<T>) {
            return v;
        } else {
            return widen(v);
        }
    }
};
struct Flushed {
    float operator()(float v) const { return flush(v); }
};

// Read is what a comparison sees of an operand: as it is, widened, or with subnormals flushed.
template <class T, class Read>
void add_floats(FormTable& t, const std::string& type) {
    auto add = [&](const char* name, auto compare) {
        add_comparison(t, name, type, comparison_of<T>(compare));
    };
    add("eq", [](T a, T b) { return Read{}(a) == Read{}(b); });
    add("ne", [](T a, T b) { return Read{}(a) < Read{}(b) || Read{}(a) > Read{}(b); });
    add("lt", [](T a, T b) { return Read{}(a) < Read{}(b); });
    add("le", [](T a, T b) { return Read{}(a) <= Read{}(b); });
    add("gt", [](T a, T b) { return Read{}(a) > Read{}(b); });
    add("ge", [](T a, T b) { return Read{}(a) >= Read{}(b); });
    // True if unordered as well.
    add("equ", [](T a, T b) { return !(Read{}(a) < Read{}(b) || Read{}(a) > Read{}(b)); });
    add("neu", [](T a, T b) { return !(Read{}(a) == Read{}(b)); });
    add("ltu", [](T a, T b) { return !(Read{}(a) >= Read{}(b)); });
    add("leu", [](T a, T b) { return !(Read{}(a) > Read{}(b)); });
    add("gtu", [](T a, T b) { return !(Read{}(a) <= Read{}(b)); });
    add("geu", [](T a, T b) { return !(Read{}(a) < Read{}(b)); });
    add("num", [](T a, T b) { return !std::isnan(Read{}(a)) && !std::isnan(Read{}(b)); });
    add("nan", [](T a, T b) { return std::isnan(Read{}(a)) || std::isnan(Read{}(b)); });
}

}  // namespace

void add_comparison_forms(FormTable& t) {
    add_integers<std::uint16_t>(t, "b16");
    add_integers<std::int16_t>(t, "s16");
    add_integers<std::uint16_t>(t, "u16");
    add_integers<std::uint32_t>(t, "b32");
    add_integers<std::int32_t>(t, "s32");
    add_integers<std::uint32_t>(t, "u32");
    add_integers<std::uint64_t>(t, "b64");
    add_integers<std::int64_t>(t, "s64");
    add_integers<std::uint64_t>(t, "u64");
    add_floats<float, AsIs>(t, "f32");
    add_floats<double, AsIs>(t, "f64");
    add_floats<Half, AsIs>(t, "f16");
    add_floats<Bfloat16, AsIs>(t, "bf16");
    add_floats<float, Flushed>(t, "ftz.f32");
}

}  // namespace gpu_emulator
