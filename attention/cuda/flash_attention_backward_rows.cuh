// Backward of flash attention: what the other two kernels need of a row
// (flash_attention_backward.cuh).
#pragma once

#include "attention/cuda/flash_attention_backward_products.cuh"

namespace evenkeel::cuda {

// Beyond it (in magnitude) an fp32 lse is too coarse: off by n 2^-24 for an lse of n, and p by that
// factor. That is a 32nd of a rounding of the storage type at the limit.
template <typename T>
constexpr float kCoarseLse = std::is_same_v<T, __half> ? 128.0f : 1024.0f;

template <int D>
struct PrepareTiles {
    static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16 * kWarps, kKeys = 32;
    using RowTile = Tile<kRows, D>;
    using KeyTile = Tile<kKeys, D>;
    // dout; out, then q; k and v where they are needed
    static constexpr int kShared = 2 * RowTile::kBytes + 2 * KeyTile::kBytes;
};

inline constexpr float kLog2E = 1.44269504f;

// What one pass over the keys knows of a row: the maximum of s, and with p = 2^((s - max)
// scale_log2) the sums of p and p dp. A lane has its own columns' sums.
struct RowSums {
    float max = -INFINITY, sum = 0.0f, product = 0.0f;
};

template <int kAcross>
__device__ __forceinline__ void add_keys(RowSums& row,
                                         const Accumulator (&s)[1][kAcross],
                                         const Accumulator (&dp)[1][kAcross],
                                         int half,
                                         const Interval& seen,
                                         int first_key,
                                         float scale_log2) {
    float highest = row.max;
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            if (inside(seen, first_key + 8 * j + c)) {
                highest = max_or_nan(highest, s[0][j].c[2 * half + c]);
            }
        }
    }
    highest = max_or_nan(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
    highest = max_or_nan(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
    const float shift = highest == -INFINITY ? 0.0f : highest;
    const float correction = exp2_approx((row.max - shift) * scale_log2);
    row.max = highest;
    row.sum *= correction;
    row.product *= correction;
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            if (inside(seen, first_key + 8 * j + c)) {
                const float p = exp2_approx((s[0][j].c[2 * half + c] - shift) * scale_log2);
                row.sum += p;
                row.product += p * dp[0][j].c[2 * half + c];
            }
        }
    }
}

__device__ __forceinline__ float sum_of_quad(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Writes rows t of {shift, offset, delta}, up to a whole block; rows that see nothing and rows
// beyond the last get a shift of infinity, for which p is 0. And every warp's share in the sink's
// gradient, where that is wanted.
template <typename T, int D>
__global__ void __launch_bounds__(PrepareTiles<D>::kThreads)
    flash_backward_prepare(const __grid_constant__ FlashBackwardProblem problem) {
    using Tiles = PrepareTiles<D>;
    using RowTile = typename Tiles::RowTile;
    using KeyTile = typename Tiles::KeyTile;
    constexpr int kAcross = Tiles::kKeys / 8;
    const FlashProblem& p = problem.forward;
    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t dout_tile = shared_address(shared);
    const std::uint32_t out_tile = dout_tile + RowTile::kBytes;  // later q's
    const std::uint32_t key_tile = out_tile + RowTile::kBytes;
    const std::uint32_t value_tile = key_tile + KeyTile::kBytes;

    const int warp = warp_of_thread(), lane = threadIdx.x % 32;
    const int b = this_batch(), head = this_head(), first_row = this_tile() * Tiles::kRows;
    const std::int64_t sequence = static_cast<std::int64_t>(b) * p.heads + head;
    const int rows = min(p.queries - first_row, Tiles::kRows);

    const TileCarrier<RowTile, Tiles::kThreads> dout_carrier(threadIdx.x, problem.dout.token);
    const TileCarrier<RowTile, Tiles::kThreads> out_carrier(threadIdx.x, p.out.token);
    load_tile(dout_carrier, dout_tile, row_address<T>(problem.dout, b, first_row, head), rows,
              Tiles::kRows);
    load_tile(out_carrier, out_tile, row_address<T>(p.out, b, first_row, head), rows, Tiles::kRows);
    commit_copies();

    const float* lse = p.lse + sequence * p.queries + first_row;
    auto lse_of = [&](int row) { return row < rows ? lse[row] : -INFINITY; };
    auto is_coarse = [](float x) { return fabsf(x) > kCoarseLse<T> && x != -INFINITY; };
    static_assert(Tiles::kRows == 64);  // every warp looks at all rows
    const bool any_coarse =
        __any_sync(0xffffffffu, is_coarse(lse_of(lane)) || is_coarse(lse_of(lane + 32)));

    // delta by the instruction and in the order that find dp: where a row has put all its weight on
    // one key, out is that key's value, and dp - delta is 0. Of dout out^T the diagonal is wanted.
    wait_for_copies<0>();
    __syncthreads();
    const SquareLoader<RowTile, Order::kDown> dout(dout_tile, 16 * warp, lane);
    const SquareLoader<RowTile, Order::kAcross> out(out_tile, 16 * warp, lane);
    Accumulator products[1][2];
    clear(products);
    multiply_rows<T, D / 16>(products, dout, out);

    RowSums found[2];
    if (any_coarse) {
        const TileCarrier<RowTile, Tiles::kThreads> q_carrier(threadIdx.x, p.q.token);
        const TileCarrier<KeyTile, Tiles::kThreads> key_carrier(threadIdx.x, p.k.token);
        const TileCarrier<KeyTile, Tiles::kThreads> value_carrier(threadIdx.x, p.v.token);
        const SquareLoader<RowTile, Order::kDown> q(out_tile, 16 * warp, lane);
        const SquareLoader<KeyTile, Order::kAcross> k(key_tile, 0, lane);
        const SquareLoader<KeyTile, Order::kAcross> v(value_tile, 0, lane);
        __syncthreads();  // out has been read
        load_tile(q_carrier, out_tile, row_address<T>(p.q, b, first_row, head), rows, Tiles::kRows);
        commit_copies();
        const int begin = visible_keys(p.mask, first_row).begin;
        const int end = visible_keys(p.mask, first_row + rows - 1).end;
        Interval seen[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = 16 * warp + lane / 4 + 8 * half;
            seen[half] = row < rows ? visible_keys(p.mask, first_row + row) : Interval{0, 0};
        }
        for (int key = begin / Tiles::kKeys * Tiles::kKeys; key < end; key += Tiles::kKeys) {
            load_tile(key_carrier, key_tile, row_address<T>(p.k, b, key, head / p.group),
                      p.keys - key, Tiles::kKeys);
            load_tile(value_carrier, value_tile, row_address<T>(p.v, b, key, head / p.group),
                      p.keys - key, Tiles::kKeys);
            commit_copies();
            wait_for_copies<0>();
            __syncthreads();
            Accumulator s[1][kAcross], dp[1][kAcross];
            clear(s);
            clear(dp);
            multiply_rows<T, D / 16>(s, q, k);
            if (p.cap_scale != 0.0f) cap_scores(s, p.cap_scale);
            multiply_rows<T, D / 16>(dp, dout, v);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                add_keys(found[half], s, dp, half, seen[half], key + lane % 4 * 2, p.scale_log2);
            }
            __syncthreads();
        }
        wait_for_copies<0>();  // q, where there was no key
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            found[half].sum = sum_of_quad(found[half].sum);
            found[half].product = sum_of_quad(found[half].product);
        }
    }

    const float sink = p.sink ? p.sink[head] * kLog2E : -INFINITY;  // in powers of 2
    float* const to = problem.rows + sequence * 3 * problem.padded_queries + first_row;
    float sink_share = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        // Lane 4 g + g / 2 has the diagonal's elements of rows g and g + 8.
        if (lane % 4 != lane / 8) continue;
        const int row = 16 * warp + lane / 4 + 8 * half;
        const Accumulator& diagonal = products[0][half];
        float delta = lane / 4 % 2 == 0 ? diagonal.c[2 * half] : diagonal.c[2 * half + 1];
        const float natural = lse_of(row);
        float shift, offset, of_sink;
        if (natural == -INFINITY || (is_coarse(natural) && found[half].sum == 0.0f)) {
            shift = INFINITY, offset = 0.0f, delta = 0.0f, of_sink = 0.0f;
        } else if (is_coarse(natural)) {
            // The sink, from the maximum on; sums are relative to the larger of the two.
            const float apart = fmaf(-found[half].max, p.scale_log2, sink);
            const float up = fmaxf(apart, 0.0f), factor = exp2_approx(-up);
            of_sink = exp2_approx(apart - up);
            const float sum = fmaf(found[half].sum, factor, of_sink);
            shift = found[half].max;
            offset = -(up + log2_approx(sum));
            delta = found[half].product * factor / sum;
            of_sink /= sum;
        } else {
            // shift is lse in scores; offset makes up for its rounding, and for lse's in powers
            // of 2.
            const float binary = natural * kLog2E;
            const float rest = fmaf(natural, kLog2E, -binary);
            shift = binary / p.scale_log2;
            offset = fmaf(shift, p.scale_log2, -binary) - rest;
            of_sink = exp2_approx((sink - binary) - rest);
        }
        sink_share += of_sink * delta;
        to[row] = shift;
        to[problem.padded_queries + row] = offset;
        to[2 * problem.padded_queries + row] = delta;
    }
    if (!problem.sink_shares) return;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        sink_share += __shfl_xor_sync(0xffffffffu, sink_share, step);
    }
    if (lane == 0) {
        const std::int64_t shares = problem.padded_queries / 16;
        problem.sink_shares[(static_cast<std::int64_t>(head) * p.batch + b) * shares +
                            first_row / 16 + warp] = sink_share;
    }
}

}  // namespace evenkeel::cuda
