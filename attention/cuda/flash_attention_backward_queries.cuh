// Backward of flash attention: dq (flash_attention_backward.cuh).
#pragma once

#include "attention/cuda/flash_attention_backward_products.cuh"

namespace evenkeel::cuda {

template <int D>
struct QueriesTiles {
    static constexpr int kDown = D == 256 ? 1 : 2;  // squares of 16 rows of a warp
    static constexpr int kRows = 128, kWarpRows = 16 * kDown, kWarps = kRows / kWarpRows;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kKeys = D == 64 ? 64 : 32, kAcross = kKeys / 8;
    using RowTile = Tile<kRows, D>;
    using KeyTile = Tile<kKeys, D>;
    // q, dout; k, v; the warps' ranges
    static constexpr int kTileBytes = 2 * RowTile::kBytes + 2 * KeyTile::kBytes;
    static constexpr int kShared = kTileBytes + kWarps * static_cast<int>(sizeof(BlockRange));
};

// What a block works on: tiles of the heads of a group lie side by side, for they share keys and
// values. Last rows come first: under a causal mask they see most.
struct QueriesPlace {
    int first_row, head;
    __device__ __forceinline__ QueriesPlace(int group, int rows) {
        const int tile = static_cast<int>(gridDim.x) - 1 - this_tile();
        first_row = tile / group * rows;
        head = this_head() * group + tile % group;
    }
};

struct RowData {
    float shift, offset, delta;
    // That of a quad's lane.
    __device__ __forceinline__ RowData of(int lane) const {
        return {__shfl_sync(0xffffffffu, shift, lane, 4), __shfl_sync(0xffffffffu, offset, lane, 4),
                __shfl_sync(0xffffffffu, delta, lane, 4)};
    }
};

// s and dp to ds, for cells with rows down and keys across; ds takes the place of s.
// kCapped: with softcap, whose tanh s is; ds is that of the logits before it.
template <bool kMasked, bool kCapped, int kDown, int kAcross>
__device__ __forceinline__ void to_gradients(Accumulator (&s)[kDown][kAcross],
                                             const Accumulator (&dp)[kDown][kAcross],
                                             const RowData& quad,
                                             float scale_log2,
                                             const FlashMask& mask,
                                             int first_row,
                                             int first_key) {
#pragma unroll
    for (int row = 0; row < 2 * kDown; ++row) {
        const RowData data = quad.of(row);
        Interval seen{};
        if constexpr (kMasked)
            seen = visible_keys(mask, min(first_row + 8 * row, mask.queries - 1));
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                float& cell = s[row / 2][j].c[row % 2 * 2 + c];
                const float p = exp2_approx(fmaf(cell - data.shift, scale_log2, data.offset));
                float ds = p * (dp[row / 2][j].c[row % 2 * 2 + c] - data.delta);
                if constexpr (kCapped) ds *= fmaf(-cell, cell, 1.0f);
                // p of a key out of range may be infinite.
                cell = !kMasked || inside(seen, first_key + 8 * j + c) ? ds : 0.0f;
            }
        }
    }
}

template <typename T, int D, bool kCapped>
__global__ void __launch_bounds__(QueriesTiles<D>::kThreads)
    flash_backward_queries(const __grid_constant__ FlashBackwardProblem problem) {
    using Tiles = QueriesTiles<D>;
    using RowTile = typename Tiles::RowTile;
    using KeyTile = typename Tiles::KeyTile;
    constexpr int kDown = Tiles::kDown, kAcross = Tiles::kAcross, kKeys = Tiles::kKeys;
    const FlashProblem& p = problem.forward;
    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t q_tile = shared_address(shared);
    const std::uint32_t dout_tile = q_tile + RowTile::kBytes;
    const std::uint32_t key_tile = dout_tile + RowTile::kBytes;
    const std::uint32_t value_tile = key_tile + KeyTile::kBytes;

    const int lane = threadIdx.x % 32, warp = warp_of_thread();
    const QueriesPlace place(p.group, Tiles::kRows);
    const int first_row = place.first_row;
    const int rows = min(p.queries - first_row, Tiles::kRows);

    // Key blocks that the tile's rows see, those that the warp's see, and those that they all see
    // all of.
    const BlockRange range = block_range(visible_keys(p.mask, first_row),
                                         visible_keys(p.mask, first_row + rows - 1), kKeys);
    const int warp_row = first_row + warp * Tiles::kWarpRows;
    // In shared memory, for there is no register left.
    auto* const warp_ranges = reinterpret_cast<BlockRange*>(shared + Tiles::kTileBytes);
    if (lane == 0) {
        warp_ranges[warp] =
            warp_row < p.queries
                ? block_range(visible_keys(p.mask, warp_row),
                              visible_keys(p.mask, min(warp_row + Tiles::kWarpRows, p.queries) - 1),
                              kKeys)
                : BlockRange{0, 0, 0, 0};
    }

    auto load_keys = [&](int block) {
        const TileCarrier<KeyTile, Tiles::kThreads> key_carrier(this_thread(), p.k.token);
        load_tile(key_carrier, key_tile,
                  row_address<T>(p.k, this_batch(), block * kKeys, this_head()),
                  p.keys - block * kKeys, kKeys);
        commit_copies();
    };
    auto load_values = [&](int block) {
        const TileCarrier<KeyTile, Tiles::kThreads> value_carrier(this_thread(), p.v.token);
        load_tile(value_carrier, value_tile,
                  row_address<T>(p.v, this_batch(), block * kKeys, this_head()),
                  p.keys - block * kKeys, kKeys);
        commit_copies();
    };
    {
        const TileCarrier<RowTile, Tiles::kThreads> q_carrier(threadIdx.x, p.q.token);
        const TileCarrier<RowTile, Tiles::kThreads> dout_carrier(threadIdx.x, problem.dout.token);
        load_tile(q_carrier, q_tile, row_address<T>(p.q, this_batch(), first_row, place.head), rows,
                  Tiles::kRows);
        load_tile(dout_carrier, dout_tile,
                  row_address<T>(problem.dout, this_batch(), first_row, place.head), rows,
                  Tiles::kRows);
        commit_copies();
    }
    if (range.begin < range.end) load_values(range.begin);

    // A quad has 2 kDown rows; each of its lanes keeps one of them.
    RowData data;
    {
        const int row = min(warp_row + lane / 4 + lane % (2 * kDown) * 8, p.queries - 1);
        const float* from = problem.rows +
                            (static_cast<std::int64_t>(this_batch()) * p.heads + place.head) * 3 *
                                problem.padded_queries +
                            row;
        data = {from[0], from[problem.padded_queries], from[2 * problem.padded_queries]};
    }

    // dout's tile follows q's, and the values' the keys': one address serves both.
    constexpr int kDout = RowTile::kBytes / RowTile::kRowBytes;
    constexpr int kValues = KeyTile::kBytes / KeyTile::kRowBytes;
    const SquareLoader<RowTile, Order::kDown> q(q_tile, warp * Tiles::kWarpRows, lane);
    const SquareLoader<KeyTile, Order::kAcross> k(key_tile, 0, lane);
    const SquareLoader<KeyTile, Order::kDown> k_across(key_tile, 0, lane);
    Accumulator dq[kDown][D / 8];
    clear(dq);

    for (int block = range.begin; block < range.end; ++block) {
        Accumulator s[kDown][kAcross], dp[kDown][kAcross];
        wait_for_copies<0>();
        __syncthreads();  // the block's values are here, and the last block's keys have been read
        const BlockRange& warp_range = warp_ranges[warp];
        const bool visible = warp_range.begin <= block && block < warp_range.end;
        load_keys(block);
        if (visible) {
            clear(dp);
            multiply_rows<T, D / 16, kDout, kValues>(dp, q, k);
        }
        wait_for_copies<0>();
        __syncthreads();  // the keys are here, and the values have been read
        if (block + 1 < range.end) load_values(block + 1);
        if (visible) {
            clear(s);
            multiply_rows<T, D / 16>(s, q, k);
            if constexpr (kCapped) cap_scores(s, p.cap_scale);
            if (warp_range.whole_begin <= block && block < warp_range.whole_end) {
                to_gradients<false, kCapped>(s, dp, data, p.scale_log2, p.mask, 0, 0);
            } else {
                to_gradients<true, kCapped>(s, dp, data, p.scale_log2, p.mask, warp_row + lane / 4,
                                            block * kKeys + lane % 4 * 2);
            }
            multiply_cells<T>(dq, s, k_across);
        }
    }

    wait_for_copies<0>();
    __syncthreads();  // q has been read: dq takes its place
    const int thread = this_thread();
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            Accumulator scaled = dq[i][j];
#pragma unroll
            for (int c = 0; c < 4; ++c) scaled.c[c] *= p.scale;
            store_accumulator<T, RowTile>(shared, thread / 32 * Tiles::kWarpRows + 16 * i, j,
                                          thread % 32, scaled);
        }
    }
    __syncthreads();
    const QueriesPlace again(p.group, Tiles::kRows);
    store_tile<T, RowTile, Tiles::kThreads>(problem.dq, shared, p.queries, again.first_row,
                                            again.head);
}

}  // namespace evenkeel::cuda
