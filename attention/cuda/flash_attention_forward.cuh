// The forward kernel of flash attention for sm_80 and later (Dao 2023, FlashAttention-2, algorithm
// 1), and its launch. Instantiated in flash_attention_forward_*.cu.
//
// A block of 4 warps takes kRows queries of one head and walks over blocks of kKeys keys from the
// last visible one to the first. The warps lie below one another: each owns kRows / 4 whole rows,
// so that the softmax needs no other warp. Queries stay in shared memory; K and V have one buffer
// each: V of a block arrives during S = Q K^T, K of the next one during the softmax and P V. Two
// blocks share a multiprocessor, so that one multiplies while the other one takes its softmax or
// waits.
//
//     D      rows x keys   shared memory   accumulators a thread (S, O)
//     64     128 x 128     48 KiB          128 + 64   (with softcap 128 x 64, 32 KiB, 64 + 64)
//     96     128 x 64      48 KiB          64 + 96
//     128    128 x 64      64 KiB          64 + 128
//     256    64 x 64       96 KiB          32 + 128   (1 block where a multiprocessor has 164 KiB)
//
// Softmax: p = 2^((s - base) scale), where base is a maximum of the row so far and at most 2^8
// below it in p: the sums are scaled anew only where a maximum outgrows that, which is rare after
// the first blocks. The difference comes before the product, so that logits of any size are safe.
// Row sums stay apart in the 4 lanes that share a row until the end. Telemetry adds one
// multiply-add a score: a = sum p log2 p (docs/math.md), with p relative to base.
//
// Softcap is an instance of its own, always with telemetry; others have no instruction for it. At
// D = 128 a score takes 16 instructions more, an exponential and a reciprocal among them: about 1030
// for a block of keys. With telemetry two warps a scheduler then issue some 3900 instructions and
// take the special function units for 3100 cycles, while tensor cores are busy for 4096 (A100): less
// room, but room. A sink costs a few instructions a row, after the last block of keys.
//
// Registers: 235 to 255 a thread and no spills, for sm_80 and sm_90 (nvcc 13.0). At D = 128 a block
// of keys that needs no mask is 256 HMMA, 80 LDSM, 64 EX2, 68 FMNMX, 200 FADD and FMUL, 32 F2FP and
// 16 copies, 850 instructions in all (nvdisasm, sm_80). On an A100 256 HMMA keep a warp's tensor
// core busy for 2048 cycles, so that two warps a scheduler leave room for all of it.
//
// The floor at B T = 16384 (one sequence), H 32, K 8, D 128, not causal:
//     4 B H T S D = 4 * 32 * 16384^2 * 128 = 4.40e12 FLOP: 14.1 ms at the A100's 312 TFLOP/s,
//     4.45 ms at the H200's 989. The latter is for wgmma; mma.sync, used here, is not expected to
//     reach more than two thirds of it. Causal: half.
//     Bytes: q and out 134.2 MB each, k and v 33.6 MB each, lse 2.1 MB: 337.6 MB, 0.17 ms at 2.04
//     TB/s and 0.07 ms at 4.8 TB/s. The kernel is bound by arithmetic; K and V are read once per
//     tile of rows, from the second-level cache, where blocks that run side by side work on one key
//     head.
#pragma once

#include "attention/cuda/flash_attention_forward.h"
#include "attention/cuda/flash_attention_mask.cuh"
#include "attention/cuda/flash_attention_statistics.cuh"
#include "attention/cuda/mma.cuh"
#include "framework/cuda.h"
#include "framework/dispatch.h"

namespace evenkeel::cuda {

// kCapped: with softcap, which needs registers of its own: a block of keys is smaller at D = 64.
template <typename T_, int kHeadDim_, bool kCapped_>
struct ForwardTiles {
    using T = T_;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr bool kCapped = kCapped_;
    static constexpr int kRows = forward_rows(kHeadDim, DType::kBFloat16);
    static constexpr int kKeys = kHeadDim == 64 && !kCapped ? 128 : 64;
    static constexpr int kWarps = 4, kThreads = 32 * kWarps;
    static constexpr int kSquares = kRows / kWarps / 16;  // 16-row squares of a warp

    using Queries = Tile<kRows, kHeadDim>;
    using Keys = Tile<kKeys, kHeadDim>;
    static constexpr int kSharedBytes = Queries::kBytes + 2 * Keys::kBytes;
};

// One warp's rows: 16 kSquares of them, two to a square in each lane (lane / 4, and 8 further
// down).
template <typename Tiles, bool kTelemetry>
struct ForwardWarp {
    using T = typename Tiles::T;
    static constexpr bool kCapped = Tiles::kCapped;
    static constexpr int kSquares = Tiles::kSquares;
    static constexpr int kKeySquares = Tiles::kKeys / 16, kDimSquares = Tiles::kHeadDim / 16;
    // A row's sums are scaled anew when its maximum exceeds the base by more than 2^8.
    static constexpr float kSlack = 8.0f;
    // Stands in for log2 of 0 where 0 log2 0 must be 0; 2^-1024 is 0.
    static constexpr float kFarBelow = -1024.0f;

    Accumulator s[kSquares][2 * kKeySquares];
    Accumulator o[kSquares][2 * kDimSquares];
    float base[kSquares][2];  // p is relative to it; -inf: nothing seen yet
    // Telemetry: the largest score (before softcap), NaN if there was one.
    float highest[kSquares][2];
    float sum[kSquares][2];      // of p, over this lane's columns
    float centred[kSquares][2];  // telemetry: of p log2 p

    __device__ __forceinline__ ForwardWarp() {
#pragma unroll
        for (int i = 0; i < kSquares; ++i) {
#pragma unroll
            for (int n = 0; n < 2 * kDimSquares; ++n) o[i][n] = {};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                base[i][half] = highest[i][half] = -INFINITY;
                sum[i][half] = centred[i][half] = 0.0f;
            }
        }
    }

    // s = Q K^T.
    template <typename QueryLoader, typename KeyLoader>
    __device__ __forceinline__ void multiply_keys(const QueryLoader& q, const KeyLoader& k) {
#pragma unroll
        for (int i = 0; i < kSquares; ++i) {
#pragma unroll
            for (int n = 0; n < 2 * kKeySquares; ++n) s[i][n] = {};
        }
#pragma unroll
        for (int d = 0; d < kDimSquares; ++d) {
            Square rows[kSquares];
#pragma unroll
            for (int i = 0; i < kSquares; ++i) rows[i] = q.load(16 * i, d);
#pragma unroll
            for (int n = 0; n < kKeySquares; ++n) {
                const Square keys = k.load(16 * n, d);
#pragma unroll
                for (int i = 0; i < kSquares; ++i) {
                    multiply_add<T>(s[i][2 * n], rows[i], keys.r[0], keys.r[1]);
                    multiply_add<T>(s[i][2 * n + 1], rows[i], keys.r[2], keys.r[3]);
                }
            }
        }
    }

    // o += P V, with P in s.
    template <typename ValueLoader>
    __device__ __forceinline__ void multiply_values(const ValueLoader& v) {
#pragma unroll
        for (int n = 0; n < kKeySquares; ++n) {
            Square p[kSquares];
#pragma unroll
            for (int i = 0; i < kSquares; ++i) p[i] = pack<T>(s[i][2 * n], s[i][2 * n + 1]);
#pragma unroll
            for (int d = 0; d < kDimSquares; ++d) {
                const Square values = v.template load<true>(16 * n, d);
#pragma unroll
                for (int i = 0; i < kSquares; ++i) {
                    multiply_add<T>(o[i][2 * d], p[i], values.r[0], values.r[1]);
                    multiply_add<T>(o[i][2 * d + 1], p[i], values.r[2], values.r[3]);
                }
            }
        }
    }

    // Logits of keys that a row does not see become -inf. `row`: the query of this lane's first
    // row; `key`: that of its first column.
    __device__ __forceinline__ void apply_mask(const FlashMask& mask, int row, int key) {
#pragma unroll
        for (int i = 0; i < kSquares; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Interval seen =
                    visible_keys(mask, min(row + 16 * i + 8 * half, mask.queries - 1));
                const int begin = seen.begin - key, end = seen.end - key;
#pragma unroll
                for (int n = 0; n < 2 * kKeySquares; ++n) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int column = 8 * n + e;
                        if (column < begin || column >= end) s[i][n].c[2 * half + e] = -INFINITY;
                    }
                }
            }
        }
    }

    // s becomes P; the sums follow. `masked`: some logits may be -inf. With softcap a score is
    // tanh(cap_scale s); that never decreases, so the maximum is taken before.
    __device__ __forceinline__ void softmax(float scale, float cap_scale, bool masked) {
        float block_max[kSquares][2];
        bool outgrown = false;
#pragma unroll
        for (int i = 0; i < kSquares; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float m = max_or_nan(s[i][0].c[2 * half], s[i][0].c[2 * half + 1]);
#pragma unroll
                for (int n = 1; n < 2 * kKeySquares; ++n) {
                    m = max_or_nan(m, s[i][n].c[2 * half]);
                    m = max_or_nan(m, s[i][n].c[2 * half + 1]);
                }
                m = max_or_nan(m, __shfl_xor_sync(0xffffffffu, m, 1));
                m = max_or_nan(m, __shfl_xor_sync(0xffffffffu, m, 2));
                if constexpr (kTelemetry) highest[i][half] = max_or_nan(highest[i][half], m);
                if constexpr (kCapped) m = capped_score(m, cap_scale);
                block_max[i][half] = m;
                outgrown |= outgrows(m, base[i][half], scale);
            }
        }
        // For the whole warp, so that its lanes stay together.
        if (__any_sync(0xffffffffu, outgrown)) rescale(block_max, scale);
        if constexpr (kTelemetry && !kCapped) {
            if (masked) raise_masked(scale);
        }
#pragma unroll
        for (int i = 0; i < kSquares; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float safe = base[i][half] == -INFINITY ? 0.0f : base[i][half];
#pragma unroll
                for (int n = 0; n < 2 * kKeySquares; ++n) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float& score = s[i][n].c[2 * half + e];
                        if constexpr (kCapped) score = capped_score(score, cap_scale);
                        float x = (score - safe) * scale;
                        if constexpr (kTelemetry && kCapped) x = max_or_nan(x, kFarBelow);
                        score = exp2_approx(x);
                        sum[i][half] += score;
                        if constexpr (kTelemetry) {
                            centred[i][half] += score * x;
                        }
                    }
                }
            }
        }
    }

    // -inf stays: the sum is that for -inf, and else not below -1. A comparison would do, but costs
    // registers.
    __device__ static __forceinline__ float capped_score(float score, float cap_scale) {
        return fminf(tanh_approx(score * cap_scale), score + kMost);
    }

    // Makes logits of -inf finite, so that their p log2 p is 0 (2^-1024 is): from the base down by
    // 1024 in the exponent, and by no less than the base can resolve.
    __device__ __forceinline__ void raise_masked(float scale) {
#pragma unroll
        for (int i = 0; i < kSquares; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float safe = base[i][half] == -INFINITY ? 0.0f : base[i][half];
                const float floor =
                    safe - fmaxf(-kFarBelow * reciprocal_approx(scale), fabsf(safe));
#pragma unroll
                for (int n = 0; n < 2 * kKeySquares; ++n) {
                    s[i][n].c[2 * half] = max_or_nan(s[i][n].c[2 * half], floor);
                    s[i][n].c[2 * half + 1] = max_or_nan(s[i][n].c[2 * half + 1], floor);
                }
            }
        }
    }

    // Where nothing was seen before: infinity. NaN never becomes a base; it is in the sums already.
    __device__ static __forceinline__ bool outgrows(float max, float from, float scale) {
        return (max - from) * scale > kSlack;
    }

    // Moves the base of rows that have outgrown it up to their maximum. The others keep theirs, so
    // that no row depends on its neighbours.
    __device__ __forceinline__ void rescale(const float (&block_max)[kSquares][2], float scale) {
#pragma unroll
        for (int i = 0; i < kSquares; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float from = base[i][half];
                const bool moves = outgrows(block_max[i][half], from, scale);
                const float to = moves ? block_max[i][half] : from;
                const float down = moves ? fmaxf((from - to) * scale, kFarBelow) : 0.0f;
                const float factor = exp2_approx(down);
                base[i][half] = to;
                if constexpr (kTelemetry) {
                    centred[i][half] = factor * (centred[i][half] + down * sum[i][half]);
                }
                sum[i][half] *= factor;
#pragma unroll
                for (int n = 0; n < 2 * kDimSquares; ++n) {
                    o[i][n].c[2 * half] *= factor;
                    o[i][n].c[2 * half + 1] *= factor;
                }
            }
        }
    }

    // Row sums of all lanes of a quad, and the sink (or null); then o is the output and `lse` its
    // companion.
    __device__ __forceinline__ void finish(float scale_log2,
                                           const float* sink,
                                           float (&lse)[kSquares][2]) {
#pragma unroll
        for (int i = 0; i < kSquares; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float& total = sum[i][half];
                total = quad_sum(total);
                if constexpr (kTelemetry) centred[i][half] = quad_sum(centred[i][half]);
                const float factor = sink ? add_sink(i, half, *sink * kLog2E, scale_log2) : 1.0f;
                const bool empty = total == 0.0f;
                const float inverse = empty ? 0.0f : factor * reciprocal_approx(total);
                lse[i][half] =
                    empty ? -INFINITY : kLn2 * (base[i][half] * scale_log2 + log2_approx(total));
#pragma unroll
                for (int n = 0; n < 2 * kDimSquares; ++n) {
                    o[i][n].c[2 * half] *= inverse;
                    o[i][n].c[2 * half + 1] *= inverse;
                }
            }
        }
    }

    // One more key of this logit (in powers of 2) and value 0: the base moves up to it where it
    // is the largest. The factor for what is relative to the base before.
    __device__ __forceinline__ float add_sink(int i, int half, float sink, float scale) {
        const float from = base[i][half], largest = fmaxf(from, sink / scale);
        const float moved = largest == -INFINITY ? 0.0f : largest;
        const float down = fmaxf((from - moved) * scale, kFarBelow);
        const float apart = fmaxf(fmaf(-moved, scale, sink), kFarBelow);
        const float factor = exp2_approx(down), of_sink = exp2_approx(apart);
        if constexpr (kTelemetry) {
            centred[i][half] =
                fmaf(of_sink, apart, factor * fmaf(down, sum[i][half], centred[i][half]));
        }
        sum[i][half] = fmaf(factor, sum[i][half], of_sink);
        base[i][half] = moved;
        return factor;
    }

    __device__ static __forceinline__ float quad_sum(float x) {
        x += __shfl_xor_sync(0xffffffffu, x, 1);
        return x + __shfl_xor_sync(0xffffffffu, x, 2);
    }

    static constexpr float kLn2 = 0.693147180559945309f, kLog2E = 1.44269504088896341f;
    static constexpr float kMost = 3.402823466e38f;  // the largest finite number
};

// Where a lane's first accumulators lie in its block's tile. Asked for anew where it is needed, so
// that no register holds it through the main loop.
struct LanePlace {
    int row, column;
};
template <typename Tiles>
__device__ __forceinline__ LanePlace lane_place() {
    const int thread = thread_index();
    return {thread / 32 * (Tiles::kRows / Tiles::kWarps) + thread % 32 / 4, thread % 4 * 2};
}

// The last rows of a head come first, which see most under a causal mask.
__device__ __forceinline__ int tile_of_block() {
    return static_cast<int>(gridDim.x) - 1 - this_tile();
}

// Of one row: `highest` its largest score, the others as finish() leaves them.
template <typename Warp>
__device__ __forceinline__ RowStatistics row_statistics(
    const FlashProblem& p, int row, float highest, float base, float total, float centred) {
    const Interval seen = visible_keys(p.mask, row);
    if (seen.begin >= seen.end || total == 0.0f) return {};
    // Rounding can make the entropy of a one-hot row negative; NaN is kept.
    float entropy = Warp::kLn2 * (log2_approx(total) - centred / total);
    entropy = entropy < 0.0f ? 0.0f : entropy;
    RowStatistics of_row{highest, entropy, 1};
    const int keys = seen.end - seen.begin + (p.sink ? 1 : 0);
    if (keys < 2) return of_row;
    const float score = p.cap_scale != 0.0f ? tanh_approx(highest * p.cap_scale) : highest;
    float largest = exp2_approx((score - base) * p.scale_log2);
    if (p.sink) {
        const float sink = p.sink[blockIdx.y] * Warp::kLog2E;
        largest = fmaxf(largest, exp2_approx(fmaf(-base, p.scale_log2, sink)));
    }
    of_row.entropy_share = entropy / (Warp::kLn2 * log2_approx(static_cast<float>(keys)));
    of_row.saturated = largest >= kSaturated * total ? 1 : 0;
    of_row.rows_of_two = 1;
    return of_row;
}

// After finish(): sums over a block's rows in a fixed order, and writes one partial result.
// of_warp: kWarps of them in shared memory.
template <typename Tiles, typename Warp>
__device__ __forceinline__ void write_partials(const Warp& warp,
                                               RowStatistics* of_warp,
                                               const FlashProblem& p,
                                               int first_row,
                                               const ForwardPartials& partials,
                                               std::int64_t index) {
    const int thread = thread_index(), lane = thread % 32;
    RowStatistics mine;
#pragma unroll
    for (int i = 0; i < Tiles::kSquares; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float highest = warp.highest[i][half];
            highest = max_or_nan(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
            highest = max_or_nan(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
            // Each row once: by the first lane of its quad.
            const int row = first_row + 16 * i + 8 * half;
            if (lane % 4 == 0 && row < p.queries) {
                mine.add(row_statistics<Warp>(p, row, highest, warp.base[i][half],
                                              warp.sum[i][half], warp.centred[i][half]));
            }
        }
    }
#pragma unroll
    for (int step = 4; step < 32; step *= 2) mine.add(mine.of_lane_across(step));
    if (lane == 0) of_warp[thread / 32] = mine;
    __syncthreads();
    if (thread == 0) {
#pragma unroll
        for (int w = 1; w < Tiles::kWarps; ++w) mine.add(of_warp[w]);
        partials.max_score[index] = mine.max_score;
        partials.entropy[index] = mine.entropy;
        partials.rows[index] = mine.rows;
        partials.entropy_share[index] = mine.entropy_share;
        partials.saturated[index] = mine.saturated;
        partials.rows_of_two[index] = mine.rows_of_two;
    }
}

template <typename Tiles, bool kTelemetry>
__global__ void __launch_bounds__(Tiles::kThreads, 2)
    flash_forward_kernel(const FlashProblem p, const ForwardPartials partials) {
    using T = typename Tiles::T;
    using Queries = typename Tiles::Queries;
    using Keys = typename Tiles::Keys;
    constexpr int kRows = Tiles::kRows, kKeys = Tiles::kKeys;
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    unsigned char* const q_tile = shared_bytes;
    const std::uint32_t q_at = shared_address(q_tile), k_at = q_at + Queries::kBytes,
                        v_at = k_at + Keys::kBytes;

    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const int warp_row = thread / 32 * (kRows / Tiles::kWarps);
    // Heads of a group follow one another, so that their K and V stay in the second-level cache.
    const int tile = tile_of_block();
    const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
    const int kv_head = head / p.group;
    const int first_query = tile * kRows;
    const int rows = p.queries - first_query;  // maybe more than a tile
    const BlockRange blocks =
        block_range(visible_keys(p.mask, first_query),
                    visible_keys(p.mask, first_query + min(rows, kRows) - 1), kKeys);

    const auto* q = static_cast<const T*>(p.q.data) + batch * p.q.batch + head * p.q.head +
                    first_query * p.q.token;
    const auto* k = static_cast<const T*>(p.k.data) + batch * p.k.batch + kv_head * p.k.head;
    const auto* v = static_cast<const T*>(p.v.data) + batch * p.v.batch + kv_head * p.v.head;
    const TileCarrier<Keys, Tiles::kThreads> k_carrier(thread, p.k.token),
        v_carrier(thread, p.v.token);
    const SquareLoader<Queries, Order::kDown> q_loader(q_at, warp_row, lane);
    const SquareLoader<Keys, Order::kAcross> k_loader(k_at, 0, lane);
    const SquareLoader<Keys, Order::kDown> v_loader(v_at, 0, lane);

    ForwardWarp<Tiles, kTelemetry> warp;
    const std::int64_t last_key = static_cast<std::int64_t>(blocks.end - 1) * kKeys;
    const char* k_source = k_carrier.source(k + last_key * p.k.token);
    const char* v_source = v_carrier.source(v + last_key * p.v.token);
    if (blocks.begin < blocks.end) {
        const TileCarrier<Queries, Tiles::kThreads> q_carrier(thread, p.q.token);
        q_carrier.template load<false>(q_at, q, rows);
        k_carrier.template load_at<false>(k_at, k_source, p.keys - static_cast<int>(last_key));
        commit_copies();
    }

    for (int n = blocks.end - 1; n >= blocks.begin; --n) {
        wait_for_copies<0>();
        __syncthreads();  // K is there, and no warp needs the V before
        v_carrier.template load_at<false>(v_at, v_source, p.keys - n * kKeys);
        commit_copies();
        v_source -= kKeys * sizeof(T) * p.v.token;
        warp.multiply_keys(q_loader, k_loader);
        wait_for_copies<0>();
        __syncthreads();  // V is there, and no warp needs K any more
        if (n > blocks.begin) {
            k_source -= kKeys * sizeof(T) * p.k.token;
            k_carrier.template load_at<true>(k_at, k_source, kKeys);
            commit_copies();
        }
        const bool masked = n < blocks.whole_begin || n >= blocks.whole_end;
        if (masked) {
            const LanePlace place = lane_place<Tiles>();
            warp.apply_mask(p.mask, tile_of_block() * kRows + place.row, n * kKeys + place.column);
        }
        warp.softmax(p.scale_log2, p.cap_scale, masked);
        warp.multiply_values(v_loader);
    }

    float lse[Tiles::kSquares][2];
    // Again: no register has held them.
    const int last_tile = tile_of_block(), h = this_head(), b = this_batch();
    const int query = last_tile * kRows;
    const int last_thread = thread_index(), last_lane = last_thread % 32;
    warp.finish(p.scale_log2, p.sink ? p.sink + h : nullptr, lse);
    const int lane_row = query + lane_place<Tiles>().row;
    float* const lse_row = p.lse + (static_cast<std::int64_t>(b) * p.heads + h) * p.queries;
#pragma unroll
    for (int i = 0; i < Tiles::kSquares; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = lane_row + 16 * i + 8 * half;
            if (last_lane % 4 == 0 && row < p.queries) lse_row[row] = lse[i][half];
        }
    }
    if (kTelemetry && (!Tiles::kCapped || partials.max_score)) {
        const std::int64_t index =
            (static_cast<std::int64_t>(h) * p.batch + b) * gridDim.x + last_tile;
        // No warp needs the keys' tile any more.
        auto* of_warp = reinterpret_cast<RowStatistics*>(q_tile + Queries::kBytes);
        write_partials<Tiles>(warp, of_warp, p, lane_row, partials, index);
    }

    // Through the queries' tile, whose rows only this warp has read, to whole rows.
#pragma unroll
    for (int i = 0; i < Tiles::kSquares; ++i) {
#pragma unroll
        for (int n = 0; n < Tiles::kHeadDim / 8; ++n) {
            store_accumulator<T, Queries>(q_tile,
                                          last_thread / 32 * (kRows / Tiles::kWarps) + 16 * i, n,
                                          last_lane, warp.o[i][n]);
        }
    }
    __syncthreads();
    const TileCarrier<Queries, Tiles::kThreads> out_carrier(last_thread, p.out.token);
    out_carrier.store(
        static_cast<T*>(p.out.data) + b * p.out.batch + h * p.out.head + query * p.out.token,
        q_tile, p.queries - query);
}

template <typename Tiles, bool kTelemetry>
void launch_flash_forward_kernel(const FlashProblem& problem, const ForwardPartials& partials) {
    const char* op = "flash_attention_forward";
    const int tiles = (problem.queries + Tiles::kRows - 1) / Tiles::kRows;
    launch(op, flash_forward_kernel<Tiles, kTelemetry>,
           {grid_size(op, tiles, problem.heads, problem.batch), dim3(Tiles::kThreads),
            Tiles::kSharedBytes},
           problem, partials);
}

template <typename T, int kHeadDim>
void launch_flash_forward_as(const FlashProblem& problem, const ForwardPartials& partials) {
    if (problem.cap_scale != 0.0f) {
        // Found, asked for or not: one kernel less to compile.
        launch_flash_forward_kernel<ForwardTiles<T, kHeadDim, true>, true>(problem, partials);
    } else if (partials.max_score) {
        launch_flash_forward_kernel<ForwardTiles<T, kHeadDim, false>, true>(problem, partials);
    } else {
        launch_flash_forward_kernel<ForwardTiles<T, kHeadDim, false>, false>(problem, partials);
    }
}

// Head_dim one of kHeadDims, dtype bf16 or fp16.
template <int... kHeadDims>
void launch_flash_forward(const FlashProblem& problem,
                          const ForwardPartials& partials,
                          std::int64_t head_dim,
                          DType dtype) {
    dispatch_value<kHeadDims...>(
        static_cast<int>(head_dim), "flash_attention_forward", "head_dim", [&]<int kHeadDim>() {
            if (dtype == DType::kBFloat16) {
                launch_flash_forward_as<__nv_bfloat16, kHeadDim>(problem, partials);
            } else {
                launch_flash_forward_as<__half, kHeadDim>(problem, partials);
            }
        });
}

}  // namespace evenkeel::cuda
