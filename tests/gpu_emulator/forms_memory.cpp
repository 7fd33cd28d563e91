// Loads, stores, atomic operations, address conversions and cp.async.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/floats.h"
#include "tests/gpu_emulator/forms.h"

namespace gpu_emulator {
namespace {

// An address register of 4 bytes holds an address of the shared window; only shared addresses may.
std::uint64_t address_of(const std::uint64_t* r, const Op& op, std::uint32_t slot) {
    return r[op.slots[slot]] + op.offset;
}

template <class T, int kCount, Space kSpace>
Step load(Block& block, std::uint64_t* r, const Op& op) {
    T values[kCount];
    if (!block.load(kSpace, address_of(r, op, kCount), sizeof values, values, op))
        return block.stop();
    for (int i = 0; i < kCount; ++i) {
        // Into a wider register: extended by the type's sign.
        if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
            put(r, op.slots[i], static_cast<std::int64_t>(values[i]));
        } else {
            put(r, op.slots[i], values[i]);
        }
    }
    return Step::kNext;
}

template <class T, int kCount, Space kSpace>
Step store(Block& block, std::uint64_t* r, const Op& op) {
    T values[kCount];
    for (int i = 0; i < kCount; ++i) values[i] = get<T>(r, op.slots[i + 1]);
    return block.store(kSpace, address_of(r, op, 0), sizeof values, values, op) ? Step::kNext
                                                                                : block.stop();
}

std::string vector_of(int count, char letter) {
    return (count == 1 ? std::string() : std::to_string(count)) + letter;
}

// Orderings and cache hints that change nothing here: no two threads run at once, and hints are
// hints.
const char* const kLoadKinds[] = {
    "", ".weak", ".volatile", ".relaxed.gpu", ".relaxed.cta", ".acquire.gpu", ".acquire.cta"};
const char* const kStoreKinds[] = {
    "", ".weak", ".volatile", ".relaxed.gpu", ".relaxed.cta", ".release.gpu", ".release.cta"};
const char* const kLoadHints[] = {"",
                                  ".ca",
                                  ".cg",
                                  ".cs",
                                  ".lu",
                                  ".cv",
                                  ".nc",
                                  ".ca.nc",
                                  ".cg.nc",
                                  ".cs.nc",
                                  ".L1::no_allocate",
                                  ".L1::evict_last",
                                  ".L1::evict_first",
                                  ".nc.L1::no_allocate",
                                  ".nc.L1::evict_last",
                                  ".nc.L1::evict_first",
                                  ".nc.L1::no_allocate.L2::128B",
                                  ".nc.L1::no_allocate.L2::256B",
                                  ".nc.L2::128B",
                                  ".nc.L2::256B",
                                  ".L1::no_allocate.L2::128B",
                                  ".L1::no_allocate.L2::256B",
                                  ".L2::128B",
                                  ".L2::256B"};
const char* const kStoreHints[] = {
    "", ".wb", ".cg", ".cs", ".wt", ".L1::no_allocate", ".L1::evict_last", ".L1::evict_first"};

// Not a template, for there are hundreds of handlers: text takes longer to compile than they do.
void add_access(FormTable& t,
                Space in,
                const std::string& space,
                const std::string& type,
                const std::string& registers,
                int count,
                Handler load,
                Handler store) {
    const std::string end =
        (count == 1 ? std::string() : ".v" + std::to_string(count)) + "." + type;
    const bool hints = in == Space::kGlobal;
    // A generic address may be of either kind.
    const std::uint8_t counted = in == Space::kShared ? kCountsShared
                                 : !hints             ? 0
                                 : space.empty()      ? kCountsShared | kCountsGlobal
                                                      : kCountsGlobal;
    for (const char* kind : kLoadKinds) {
        if (*kind != 0 && counted == 0) continue;
        for (const char* hint : kLoadHints) {
            if (*hint != 0 && (*kind != 0 || !hints || space.empty())) continue;
            t.add("ld" + (kind + (space + hint)) + end, Form{registers + " = a", load, 0, counted});
        }
    }
    if (in == Space::kParam || in == Space::kConst) return;
    for (const char* kind : kStoreKinds) {
        if (*kind != 0 && counted == 0) continue;
        for (const char* hint : kStoreHints) {
            if (*hint != 0 && (*kind != 0 || !hints)) continue;
            t.add("st" + (kind + (space + hint)) + end, Form{"a " + registers, store, 0, counted});
        }
    }
}

template <class T, int kCount, Space kSpace>
void add_vector(FormTable& t, const std::string& space, const std::string& type) {
    const char letter = sizeof(T) == 1 ? 'B' : sizeof(T) == 2 ? 'H' : sizeof(T) == 4 ? 'W' : 'l';
    add_access(t, kSpace, space, type, vector_of(kCount, letter), kCount, &load<T, kCount, kSpace>,
               &store<T, kCount, kSpace>);
}

template <class T, Space kSpace>
void add_type(FormTable& t, const std::string& space, const std::string& type) {
    add_vector<T, 1, kSpace>(t, space, type);
    add_vector<T, 2, kSpace>(t, space, type);
    if constexpr (sizeof(T) < 8) add_vector<T, 4, kSpace>(t, space, type);
}

template <Space kSpace>
void add_space(FormTable& t, const std::string& space) {
    add_type<std::uint8_t, kSpace>(t, space, "b8");
    add_type<std::uint8_t, kSpace>(t, space, "u8");
    add_type<std::int8_t, kSpace>(t, space, "s8");
    add_type<std::uint16_t, kSpace>(t, space, "b16");
    add_type<std::uint16_t, kSpace>(t, space, "u16");
    add_type<std::int16_t, kSpace>(t, space, "s16");
    add_type<std::uint32_t, kSpace>(t, space, "b32");
    add_type<std::uint32_t, kSpace>(t, space, "u32");
    add_type<std::int32_t, kSpace>(t, space, "s32");
    add_type<float, kSpace>(t, space, "f32");
    add_type<std::uint64_t, kSpace>(t, space, "b64");
    add_type<std::uint64_t, kSpace>(t, space, "u64");
    add_type<std::int64_t, kSpace>(t, space, "s64");
    add_type<double, kSpace>(t, space, "f64");
}

// ---- Atomic operations

template <class T, class F, Space kSpace, bool kReturns>
Step atomic(Block& block, std::uint64_t* r, const Op& op) {
    const std::uint32_t at = kReturns ? 1 : 0;
    std::uint8_t* memory = block.atomic(kSpace, address_of(r, op, at), sizeof(T), op);
    if (memory == nullptr) return block.stop();
    T old;
    std::memcpy(&old, memory, sizeof old);
    T now;
    if constexpr (std::is_invocable_v<F, T, T, T>) {
        now = F{}(old, get<T>(r, op.slots[at + 1]), get<T>(r, op.slots[at + 2]));
    } else {
        now = F{}(old, get<T>(r, op.slots[at + 1]));
    }
    std::memcpy(memory, &now, sizeof now);
    if (kReturns) put(r, op.slots[0], old);
    return Step::kNext;
}

const char* const kAtomicKinds[] = {"", ".relaxed", ".relaxed.gpu", ".relaxed.cta"};

struct Exchange {
    template <class T>
    T operator()(T, T b) const {
        return b;
    }
};

// The handlers of one operation; red_*: null where it has no form without a result.
struct Atomic {
    std::string source;
    char letter;
    Handler atom_global, atom_shared, red_global, red_shared;
};

void add_atomic(FormTable& t, const std::string& end, const Atomic& a) {
    for (const std::string kind : kAtomicKinds) {
        const std::string with = std::string(1, a.letter) + " = a " + a.source;
        t.add("atom" + kind + ".global." + end, Form{with, a.atom_global});
        t.add("atom" + kind + "." + end, Form{with, a.atom_global});
        t.add("atom" + kind + ".shared." + end, Form{with, a.atom_shared});
    }
    if (a.red_global == nullptr) return;
    t.add("red.global." + end, Form{"a " + a.source, a.red_global});
    t.add("red." + end, Form{"a " + a.source, a.red_global});
    t.add("red.shared." + end, Form{"a " + a.source, a.red_shared});
}

template <class T, class F>
void add_atomic(FormTable& t, const std::string& end, F) {
    constexpr bool kCompares = std::is_invocable_v<F, T, T, T>;
    Atomic a{std::string(kCompares ? 3 : 1, size_letter<T>()),
             size_letter<T>(),
             &atomic<T, F, Space::kGlobal, true>,
             &atomic<T, F, Space::kShared, true>,
             nullptr,
             nullptr};
    if constexpr (kCompares) {
        a.source[1] = ' ';
    } else if constexpr (!std::is_same_v<F, Exchange>) {
        a.red_global = &atomic<T, F, Space::kGlobal, false>;
        a.red_shared = &atomic<T, F, Space::kShared, false>;
    }
    add_atomic(t, end, a);
}

template <class T>
void add_atomic_integers(FormTable& t, const std::string& type) {
    using U = std::make_unsigned_t<T>;
    if (type != "s64") add_atomic<T>(t, "add." + type, [](T a, T b) { return T(U(a) + U(b)); });
    add_atomic<T>(t, "min." + type, [](T a, T b) { return std::min(a, b); });
    add_atomic<T>(t, "max." + type, [](T a, T b) { return std::max(a, b); });
    if (type == "u32") {
        add_atomic<T>(t, "inc." + type, [](T a, T b) { return a >= b ? T(0) : T(a + 1); });
        add_atomic<T>(t, "dec." + type, [](T a, T b) { return a == 0 || a > b ? b : T(a - 1); });
    }
}

template <class T>
void add_atomic_bits(FormTable& t, const std::string& type) {
    add_atomic<T>(t, "and." + type, [](T a, T b) { return T(a & b); });
    add_atomic<T>(t, "or." + type, [](T a, T b) { return T(a | b); });
    add_atomic<T>(t, "xor." + type, [](T a, T b) { return T(a ^ b); });
    add_atomic<T>(t, "exch." + type, Exchange());
    add_atomic<T>(t, "cas." + type, [](T a, T compare, T b) { return a == compare ? b : a; });
}

// ---- cp.async

// Operands: [to], [from], bytes, and optionally how many of them are read; the rest is zeros. mode:
// bytes allowed.
template <bool kHasSize>
Step copy(Block& block, std::uint64_t* r, const Op& op) {
    const std::uint32_t bytes = get<std::uint32_t>(r, op.slots[2]);
    const std::uint32_t read = kHasSize ? get<std::uint32_t>(r, op.slots[3]) : bytes;
    if (bytes != 16 && (op.mode == 16 || (bytes != 8 && bytes != 4))) {
        block.report_at("misuse", "cp.async of " + std::to_string(bytes) + " bytes",
                        block.pc_of(op));
        return block.stop();
    }
    block.start_copy(get<std::uint32_t>(r, op.slots[0]) + static_cast<std::uint32_t>(op.offset),
                     r[op.slots[1]] + op.offset2, bytes, read, op);
    return block.stopped() ? block.stop() : Step::kNext;
}

Step commit(Block& block, std::uint64_t*, const Op&) {
    block.commit_copies();
    return Step::kNext;
}
Step wait_group(Block& block, std::uint64_t* r, const Op& op) {
    return block.wait_copies(get<std::uint32_t>(r, op.slots[0])) ? Step::kNext : block.stop();
}
Step wait_all(Block& block, std::uint64_t*, const Op&) {
    return block.wait_all_copies() ? Step::kNext : block.stop();
}

void add_copies(FormTable& t) {
    for (const std::string level : {"ca", "cg"}) {
        const std::uint32_t mode = level == "cg" ? 16 : 4;
        for (const char* space : {".shared.global", ".shared::cta.global"}) {
            for (const char* hint : {"", ".L2::64B", ".L2::128B", ".L2::256B"}) {
                const std::string text = "cp.async." + level + space + hint;
                t.add(text, Form{"a a w", &copy<false>, mode, kCountsShared | kCountsGlobal});
                t.add(text, Form{"a a w w", &copy<true>, mode, kCountsShared | kCountsGlobal});
            }
        }
    }
    t.add("cp.async.commit_group", Form{"", &commit});
    t.add("cp.async.wait_group", Form{"w", &wait_group});
    t.add("cp.async.wait_all", Form{"", &wait_all});
}

void add_address_conversions(FormTable& t) {
    using Address = std::uint64_t(std::uint64_t);
    auto to = [&](const char* space, auto in, auto out) {
        for (const char* bits : {"u64"}) {
            t.add<Address>(std::string("cvta.") + space + "." + bits, in);
            t.add<Address>(std::string("cvta.to.") + space + "." + bits, out);
        }
    };
    to(
        "global", [](std::uint64_t a) { return a; }, [](std::uint64_t a) { return a; });
    to(
        "const", [](std::uint64_t a) { return a; }, [](std::uint64_t a) { return a; });
    to(
        "shared", [](std::uint64_t a) { return kSharedWindow | a; },
        [](std::uint64_t a) { return a & kWindowMask; });
    to(
        "local", [](std::uint64_t a) { return kLocalWindow | a; },
        [](std::uint64_t a) { return a & kWindowMask; });
    to(
        "param", [](std::uint64_t a) { return kParamWindow | a; },
        [](std::uint64_t a) { return a & kWindowMask; });
    using Test = bool(std::uint64_t);
    t.add<Test>("isspacep.shared",
                [](std::uint64_t a) { return (a & ~kWindowMask) == kSharedWindow; });
    t.add<Test>("isspacep.local",
                [](std::uint64_t a) { return (a & ~kWindowMask) == kLocalWindow; });
    t.add<Test>("isspacep.global", [](std::uint64_t a) { return a < kSharedWindow; });
}

}  // namespace

void add_memory_forms(FormTable& t) {
    add_space<Space::kGlobal>(t, "");
    add_space<Space::kGlobal>(t, ".global");
    add_space<Space::kShared>(t, ".shared");
    add_space<Space::kShared>(t, ".shared::cta");
    add_space<Space::kLocal>(t, ".local");
    add_space<Space::kParam>(t, ".param");
    add_space<Space::kConst>(t, ".const");
    add_atomic_integers<std::uint32_t>(t, "u32");
    add_atomic_integers<std::int32_t>(t, "s32");
    add_atomic_integers<std::uint64_t>(t, "u64");
    add_atomic_integers<std::int64_t>(t, "s64");
    add_atomic_bits<std::uint32_t>(t, "b32");
    add_atomic_bits<std::uint64_t>(t, "b64");
    add_atomic<float>(t, "add.f32", [](float a, float b) { return canonical(a + b); });
    add_atomic<double>(t, "add.f64", [](double a, double b) { return a + b; });
    add_copies(t);
    add_address_conversions(t);
}

}  // namespace gpu_emulator
