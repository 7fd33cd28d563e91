// Operations of a whole warp and of the block: shuffles, votes, ldmatrix, mma, barriers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/floats.h"
#include "tests/gpu_emulator/forms.h"

namespace gpu_emulator {
namespace {

template <class F>
void for_each_lane(std::uint32_t lanes, F f) {
    for (; lanes != 0; lanes &= lanes - 1) f(static_cast<std::uint32_t>(std::countr_zero(lanes)));
}

// The handler of an operation whose mask of lanes is the last operand.
template <Block::WarpOperation kOperation>
Step masked(Block& block, std::uint64_t* r, const Op& op) {
    return block.meet(op, get<std::uint32_t>(r, op.slots[op.slot_count - 1]), false, kOperation);
}

// The handler of an operation that the whole warp must execute.
template <Block::WarpOperation kOperation>
Step whole(Block& block, std::uint64_t*, const Op& op) {
    return block.meet(op, kAllLanes, true, kOperation);
}

// ---- shfl.sync d|p, a, b, c, mask

enum class Shuffle { kIdx, kUp, kDown, kBfly };

template <Shuffle kKind>
bool shuffle(Block& block, std::uint32_t warp, std::uint32_t lanes, const Op& op) {
    std::uint32_t values[32] = {};
    for_each_lane(lanes, [&](std::uint32_t lane) {
        values[lane] = get<std::uint32_t>(block.registers(warp * 32 + lane), op.slots[2]);
    });
    bool good = true;
    for_each_lane(lanes, [&](std::uint32_t lane) {
        std::uint64_t* r = block.registers(warp * 32 + lane);
        const std::uint32_t b = get<std::uint32_t>(r, op.slots[3]) & 31;
        const std::uint32_t c = get<std::uint32_t>(r, op.slots[4]);
        const std::uint32_t clamp = c & 31, segment = (c >> 8) & 31;
        const std::uint32_t least = lane & segment, most = least | (clamp & ~segment);
        std::uint32_t from;
        bool inside;
        switch (kKind) {
            case Shuffle::kUp:
                from = lane - b;
                inside = static_cast<std::int32_t>(from) >= static_cast<std::int32_t>(most);
                break;
            case Shuffle::kDown:
                from = lane + b;
                inside = from <= most;
                break;
            case Shuffle::kBfly:
                from = lane ^ b;
                inside = from <= most;
                break;
            case Shuffle::kIdx:
                from = least | (b & ~segment);
                inside = from <= most;
                break;
        }
        if (!inside) from = lane;
        if (((lanes >> from) & 1) == 0) {
            block.report_at(
                "divergence",
                "shfl.sync reads lane " + std::to_string(from) + ", which is not in its mask",
                block.pc_of(op));
            good = false;
        }
        put(r, op.slots[0], values[from]);
        put(r, op.slots[1], inside);
    });
    return good;
}

// ---- vote, match, redux

enum class Vote { kAll, kAny, kUni, kBallot };

template <Vote kKind>
bool vote(Block& block, std::uint32_t warp, std::uint32_t lanes, const Op& op) {
    std::uint32_t set = 0;
    for_each_lane(lanes, [&](std::uint32_t lane) {
        const bool p = get<bool>(block.registers(warp * 32 + lane), op.slots[1]) != op.negated;
        set |= std::uint32_t(p) << lane;
    });
    for_each_lane(lanes, [&](std::uint32_t lane) {
        std::uint64_t* r = block.registers(warp * 32 + lane);
        switch (kKind) {
            case Vote::kAll:
                put(r, op.slots[0], set == lanes);
                break;
            case Vote::kAny:
                put(r, op.slots[0], set != 0);
                break;
            case Vote::kUni:
                put(r, op.slots[0], set == lanes || set == 0);
                break;
            case Vote::kBallot:
                put(r, op.slots[0], set);
                break;
        }
    });
    return true;
}

template <class T>
bool match_any(Block& block, std::uint32_t warp, std::uint32_t lanes, const Op& op) {
    std::uint32_t result[32] = {};
    for_each_lane(lanes, [&](std::uint32_t lane) {
        std::uint64_t* r = block.registers(warp * 32 + lane);
        const T mine = get<T>(r, op.slots[1]);
        std::uint32_t same = 0;
        for_each_lane(lanes, [&](std::uint32_t other) {
            const T theirs = get<T>(block.registers(warp * 32 + other), op.slots[1]);
            same |= std::uint32_t(theirs == mine) << other;
        });
        result[lane] = same;
    });
    for_each_lane(lanes, [&](std::uint32_t lane) {
        put(block.registers(warp * 32 + lane), op.slots[0], result[lane]);
    });
    return true;
}

template <class T>
bool match_all(Block& block, std::uint32_t warp, std::uint32_t lanes, const Op& op) {
    bool same = true;
    const std::uint32_t first = static_cast<std::uint32_t>(std::countr_zero(lanes));
    const T value = get<T>(block.registers(warp * 32 + first), op.slots[2]);
    for_each_lane(lanes, [&](std::uint32_t lane) {
        same = same && get<T>(block.registers(warp * 32 + lane), op.slots[2]) == value;
    });
    for_each_lane(lanes, [&](std::uint32_t lane) {
        put(block.registers(warp * 32 + lane), op.slots[0], same ? lanes : 0u);
        put(block.registers(warp * 32 + lane), op.slots[1], same);
    });
    return true;
}

template <class T, class F>
bool reduce(Block& block, std::uint32_t warp, std::uint32_t lanes, const Op& op) {
    bool any = false;
    T sum = 0;
    for_each_lane(lanes, [&](std::uint32_t lane) {
        const T v = get<T>(block.registers(warp * 32 + lane), op.slots[1]);
        sum = any ? F{}(sum, v) : v;
        any = true;
    });
    for_each_lane(lanes, [&](std::uint32_t lane) {
        put(block.registers(warp * 32 + lane), op.slots[0], sum);
    });
    return true;
}

template <class T, class F>
void add_reduce(FormTable& t, const std::string& end, F) {
    t.add("redux.sync." + end, Form{"w = w w", &masked<&reduce<T, F>>});
}

// Which other lanes run at the same time is never promised.
Step activemask(Block& block, std::uint64_t* r, const Op& op) {
    put(r, op.slots[0], 1u << (block.thread() % 32));
    return Step::kNext;
}

bool warp_barrier(Block& block, std::uint32_t warp, std::uint32_t lanes, const Op&) {
    block.join_lanes(warp, lanes);
    return true;
}

// ---- ldmatrix: lane 8 m + i gives the address of row i of matrix m.

template <int kMatrices, bool kTransposed>
bool load_matrix(Block& block, std::uint32_t warp, std::uint32_t, const Op& op) {
    std::uint32_t fragment[32][kMatrices];
    for (std::uint32_t m = 0; m < kMatrices; ++m) {
        std::uint16_t matrix[8][8];
        std::uint64_t rows[8];
        for (std::uint32_t i = 0; i < 8; ++i) {
            const std::uint32_t thread = warp * 32 + m * 8 + i;
            rows[i] = get<std::uint32_t>(block.registers(thread), op.slots[kMatrices]) +
                      static_cast<std::uint32_t>(op.offset);
            if (!block.load_row(thread, static_cast<std::uint32_t>(rows[i]), matrix[i], op)) {
                return false;
            }
        }
        block.count_matrix(op, rows);
        // Registers are written behind the last use of the addresses, which may be in them.
        for (std::uint32_t lane = 0; lane < 32; ++lane) {
            const std::uint32_t a = lane / 4, b = lane % 4 * 2;
            const std::uint32_t low = kTransposed ? matrix[b][a] : matrix[a][b];
            const std::uint32_t high = kTransposed ? matrix[b + 1][a] : matrix[a][b + 1];
            fragment[lane][m] = low | (high << 16);
        }
    }
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
        for (std::uint32_t m = 0; m < kMatrices; ++m) {
            put(block.registers(warp * 32 + lane), op.slots[m], fragment[lane][m]);
        }
    }
    return true;
}

template <int kMatrices>
void add_load_matrix(FormTable& t) {
    const std::string vector = std::to_string(kMatrices) + "w = a";
    for (const std::string space : {".shared", ".shared::cta"}) {
        const std::string start = "ldmatrix.sync.aligned.m8n8.x" + std::to_string(kMatrices);
        t.add(start + space + ".b16",
              Form{vector, &whole<&load_matrix<kMatrices, false>>, 0, kCountsShared});
        t.add(start + ".trans" + space + ".b16",
              Form{vector, &whole<&load_matrix<kMatrices, true>>, 0, kCountsShared});
    }
}

// ---- mma: D[16][8] = A[16][k] B[k][8] + C. Products are exact, summed in double and rounded once.

template <class T>
void unpack(std::uint32_t bits, double& x, double& y) {
    T low, high;
    low.bits = static_cast<std::uint16_t>(bits);
    high.bits = static_cast<std::uint16_t>(bits >> 16);
    x = widen(low);
    y = widen(high);
}

// Eight columns at once, in the widest registers that the CPU has.
using Row = double __attribute__((vector_size(64)));

#if defined(__x86_64__)
__attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#endif
void add_products(const double* a, const Row* b, Row* d, int depth) {
    for (int row = 0; row < 16; ++row) {
        Row sum = {};
        for (int k = 0; k < depth; ++k) sum += a[row * depth + k] * b[k];
        d[row] = sum;
    }
}

template <class T, int kDepth>
bool multiply(Block& block, std::uint32_t warp, std::uint32_t, const Op& op) {
    constexpr int a_registers = kDepth / 4, b_registers = kDepth / 8;
    double a[16][kDepth];
    Row b[kDepth];
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
        const std::uint64_t* r = block.registers(warp * 32 + lane);
        const std::uint32_t group = lane / 4, pair = lane % 4 * 2;
        for (std::uint32_t i = 0; i < a_registers; ++i) {
            const std::uint32_t row = group + (i % 2) * 8, column = pair + (i / 2) * 8;
            unpack<T>(get<std::uint32_t>(r, op.slots[4 + i]), a[row][column], a[row][column + 1]);
        }
        for (std::uint32_t i = 0; i < b_registers; ++i) {
            const std::uint32_t row = pair + i * 8;
            double low, high;
            unpack<T>(get<std::uint32_t>(r, op.slots[4 + a_registers + i]), low, high);
            b[row][group] = low;
            b[row + 1][group] = high;
        }
    }
    Row d[16];
    add_products(a[0], b, d, kDepth);
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
        std::uint64_t* r = block.registers(warp * 32 + lane);
        for (std::uint32_t i = 0; i < 4; ++i) {
            const double sum = d[lane / 4 + (i / 2) * 8][lane % 4 * 2 + i % 2] +
                               get<float>(r, op.slots[4 + a_registers + b_registers + i]);
            put(r, op.slots[i], canonical(static_cast<float>(sum)));
        }
    }
    return true;
}

// ---- bar and barrier

template <int kOperands, bool kWaits>
Step barrier(Block& block, std::uint64_t* r, const Op& op) {
    const std::uint32_t count = kOperands > 1 ? get<std::uint32_t>(r, op.slots[1]) : 0;
    if (kOperands > 1 && count == 0) {
        block.report_at("misuse", "a barrier of 0 threads", block.pc_of(op));
        return block.stop();
    }
    return block.barrier(op, get<std::uint32_t>(r, op.slots[0]), count, kWaits,
                         Block::Reduction::kNone, false);
}

template <Block::Reduction kReduction, bool kCounted>
Step barrier_reduce(Block& block, std::uint64_t* r, const Op& op) {
    const std::uint32_t count = kCounted ? get<std::uint32_t>(r, op.slots[2]) : 0;
    const bool p = get<bool>(r, op.slots[kCounted ? 3 : 2]) != op.negated;
    return block.barrier(op, get<std::uint32_t>(r, op.slots[1]), count, true, kReduction, p);
}

void add_barriers(FormTable& t) {
    for (const std::string start : {"bar", "barrier", "bar.cta", "barrier.cta"}) {
        const bool named = start.find("barrier") == 0;
        for (const std::string aligned : {"", ".aligned"}) {
            if (!named && !aligned.empty()) continue;
            t.add(start + ".sync" + aligned, Form{"w", &barrier<1, true>});
            t.add(start + ".sync" + aligned, Form{"w w", &barrier<2, true>});
            t.add(start + ".arrive" + aligned, Form{"w w", &barrier<2, false>});
            const std::string red = start + ".red";
            using R = Block::Reduction;
            t.add(red + ".popc" + aligned + ".u32",
                  Form{"w = w p", &barrier_reduce<R::kPopc, false>});
            t.add(red + ".and" + aligned + ".pred",
                  Form{"p = w p", &barrier_reduce<R::kAnd, false>});
            t.add(red + ".or" + aligned + ".pred", Form{"p = w p", &barrier_reduce<R::kOr, false>});
            t.add(red + ".popc" + aligned + ".u32",
                  Form{"w = w w p", &barrier_reduce<R::kPopc, true>});
        }
    }
    t.add("bar.warp.sync", Form{"w", &masked<&warp_barrier>});
}

}  // namespace

void add_warp_forms(FormTable& t) {
    t.add("shfl.sync.idx.b32", Form{"w|p = w w w w", &masked<&shuffle<Shuffle::kIdx>>});
    t.add("shfl.sync.up.b32", Form{"w|p = w w w w", &masked<&shuffle<Shuffle::kUp>>});
    t.add("shfl.sync.down.b32", Form{"w|p = w w w w", &masked<&shuffle<Shuffle::kDown>>});
    t.add("shfl.sync.bfly.b32", Form{"w|p = w w w w", &masked<&shuffle<Shuffle::kBfly>>});
    t.add("vote.sync.all.pred", Form{"p = p w", &masked<&vote<Vote::kAll>>});
    t.add("vote.sync.any.pred", Form{"p = p w", &masked<&vote<Vote::kAny>>});
    t.add("vote.sync.uni.pred", Form{"p = p w", &masked<&vote<Vote::kUni>>});
    t.add("vote.sync.ballot.b32", Form{"w = p w", &masked<&vote<Vote::kBallot>>});
    t.add("match.any.sync.b32", Form{"w = w w", &masked<&match_any<std::uint32_t>>});
    t.add("match.any.sync.b64", Form{"w = l w", &masked<&match_any<std::uint64_t>>});
    t.add("match.all.sync.b32", Form{"w|p = w w", &masked<&match_all<std::uint32_t>>});
    t.add("match.all.sync.b64", Form{"w|p = l w", &masked<&match_all<std::uint64_t>>});
    t.add("activemask.b32", Form{"w =", &activemask});
    using U = std::uint32_t;
    using S = std::int32_t;
    add_reduce<U>(t, "add.u32", [](U a, U b) { return a + b; });
    add_reduce<U>(t, "add.s32", [](U a, U b) { return a + b; });
    add_reduce<U>(t, "min.u32", [](U a, U b) { return std::min(a, b); });
    add_reduce<U>(t, "max.u32", [](U a, U b) { return std::max(a, b); });
    add_reduce<S>(t, "min.s32", [](S a, S b) { return std::min(a, b); });
    add_reduce<S>(t, "max.s32", [](S a, S b) { return std::max(a, b); });
    add_reduce<U>(t, "and.b32", [](U a, U b) { return a & b; });
    add_reduce<U>(t, "or.b32", [](U a, U b) { return a | b; });
    add_reduce<U>(t, "xor.b32", [](U a, U b) { return a ^ b; });
    add_load_matrix<1>(t);
    add_load_matrix<2>(t);
    add_load_matrix<4>(t);
    const std::string mma = "mma.sync.aligned.m16n8k";
    t.add(mma + "16.row.col.f32.bf16.bf16.f32",
          Form{"4w = 4w 2w 4w", &whole<&multiply<Bfloat16, 16>>});
    t.add(mma + "16.row.col.f32.f16.f16.f32", Form{"4w = 4w 2w 4w", &whole<&multiply<Half, 16>>});
    for (const char* one : {"1w", "w"}) {
        const std::string signature = std::string("4w = 2w ") + one + " 4w";
        t.add(mma + "8.row.col.f32.bf16.bf16.f32", Form{signature, &whole<&multiply<Bfloat16, 8>>});
        t.add(mma + "8.row.col.f32.f16.f16.f32", Form{signature, &whole<&multiply<Half, 8>>});
    }
    add_barriers(t);
}

}  // namespace gpu_emulator
