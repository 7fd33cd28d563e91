// Backward of flash attention: dk and dv (flash_attention_backward.cuh).
#pragma once

#include "attention/cuda/flash_attention_backward_products.cuh"

namespace evenkeel::cuda {

// With softcap, which needs registers of its own, a step has fewer rows at D = 128.
template <int D, bool kCapped>
struct KeysTiles {
    static constexpr int kPairs = 4, kThreads = 64 * kPairs;
    static constexpr int kDown = D == 256 ? 1 : 2;  // squares of 16 keys of a warp
    static constexpr int kWarpKeys = 16 * kDown, kKeys = kPairs * kWarpKeys;
    static constexpr int kRows = D == 256 || (kCapped && D == 128) ? 32 : 64, kAcross = kRows / 8;
    using KeyTile = Tile<kKeys, D>;
    using RowTile = Tile<kRows, D>;
    // k, v; twice {q, dout}; p; twice {shift, offset, delta}
    static constexpr int kStage = 2 * RowTile::kBytes;
    static constexpr int kHandOver = kPairs * kDown * kAcross * 32 * 16;
    static constexpr int kRowData = 3 * kRows * 4;
    static constexpr int kShared = 2 * KeyTile::kBytes + 2 * kStage + kHandOver + 2 * kRowData;
};

// An accumulator to and from shared memory, 16 bytes a lane: said here, for the compiler sometimes
// makes two halves of it, whose lanes meet in the banks.
__device__ __forceinline__ void hand_over(std::uint32_t address, const Accumulator& cells) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(cells.c[0]),
                 "f"(cells.c[1]), "f"(cells.c[2]), "f"(cells.c[3])
                 : "memory");
}
__device__ __forceinline__ Accumulator take_over(std::uint32_t address) {
    Accumulator cells;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(cells.c[0]), "=f"(cells.c[1]), "=f"(cells.c[2]), "=f"(cells.c[3])
                 : "r"(address)
                 : "memory");
    return cells;
}

// s to p, for cells with keys down and rows across.
template <bool kMasked, int kDown, int kAcross>
__device__ __forceinline__ void to_probabilities(Accumulator (&s)[kDown][kAcross],
                                                 const float* shift,
                                                 const float* offset,
                                                 float scale_log2,
                                                 const Interval (&seeing)[2 * kDown],
                                                 int first_row) {
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
        const float2 x = *reinterpret_cast<const float2*>(shift + 8 * j);
        const float2 y = *reinterpret_cast<const float2*>(offset + 8 * j);
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float of_shift = c % 2 == 0 ? x.x : x.y, of_offset = c % 2 == 0 ? y.x : y.y;
                const float p = exp2_approx(fmaf(s[i][j].c[c] - of_shift, scale_log2, of_offset));
                s[i][j].c[c] =
                    !kMasked || inside(seeing[2 * i + c / 2], first_row + 8 * j + c % 2) ? p : 0.0f;
            }
        }
    }
}

// The same with softcap, whose tanh s is: p times the derivative of that tanh is handed over, and p
// takes the place of s. Every block is taken for one that needs a mask.
template <int kDown, int kAcross>
__device__ __forceinline__ void to_capped_probabilities(Accumulator (&s)[kDown][kAcross],
                                                        const float* shift,
                                                        const float* offset,
                                                        float scale_log2,
                                                        const Interval (&seeing)[2 * kDown],
                                                        int first_row,
                                                        std::uint32_t lane_hand_over) {
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
        const float2 x = *reinterpret_cast<const float2*>(shift + 8 * j);
        const float2 y = *reinterpret_cast<const float2*>(offset + 8 * j);
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
            Accumulator of_uncapped;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                float& cell = s[i][j].c[c];
                const float of_shift = c % 2 == 0 ? x.x : x.y, of_offset = c % 2 == 0 ? y.x : y.y;
                const float p = exp2_approx(fmaf(cell - of_shift, scale_log2, of_offset));
                const float derivative = fmaf(-cell, cell, 1.0f);
                cell = inside(seeing[2 * i + c / 2], first_row + 8 * j + c % 2) ? p : 0.0f;
                of_uncapped.c[c] = cell * derivative;
            }
            hand_over(lane_hand_over + (i * kAcross + j) * 512, of_uncapped);
        }
    }
}

template <typename T, int D, bool kCapped>
__global__ void __launch_bounds__(KeysTiles<D, kCapped>::kThreads, 1)
    flash_backward_keys(const __grid_constant__ FlashBackwardProblem problem) {
    using Tiles = KeysTiles<D, kCapped>;
    using KeyTile = typename Tiles::KeyTile;
    using RowTile = typename Tiles::RowTile;
    constexpr int kDown = Tiles::kDown, kAcross = Tiles::kAcross, kRows = Tiles::kRows;
    const FlashProblem& p = problem.forward;
    extern __shared__ __align__(128) unsigned char shared[];
    const std::uint32_t key_tile = shared_address(shared);
    const std::uint32_t value_tile = key_tile + KeyTile::kBytes;
    const std::uint32_t stages = value_tile + KeyTile::kBytes;
    constexpr int kHandOverAt = 2 * KeyTile::kBytes + 2 * Tiles::kStage;
    float* const row_data = reinterpret_cast<float*>(shared + kHandOverAt + Tiles::kHandOver);

    const int lane = threadIdx.x % 32, warp = warp_of_thread();
    const int pair = warp % Tiles::kPairs;
    const bool finds_p = warp < Tiles::kPairs;  // s, p and dv; else dp, ds and dk
    const int b = this_batch(), kv_head = this_head();
    const int first_key = this_tile() * Tiles::kKeys;
    const int keys = min(p.keys - first_key, Tiles::kKeys);

    // Row blocks that see the tile's keys, and those that all see all of the warp's.
    const BlockRange range = block_range(seeing_queries(p.mask, first_key),
                                         seeing_queries(p.mask, first_key + keys - 1), kRows);
    const int warp_key = first_key + pair * Tiles::kWarpKeys;
    const BlockRange warp_range =
        block_range(seeing_queries(p.mask, min(warp_key, p.keys - 1)),
                    seeing_queries(p.mask, min(warp_key + Tiles::kWarpKeys, p.keys) - 1), kRows);
    const int steps = p.group * (range.end - range.begin);

    auto load_rows = [&](int stage, int head, int block) {
        const int thread = this_thread(), b = this_batch();
        const TileCarrier<RowTile, Tiles::kThreads> q_carrier(thread, p.q.token);
        const TileCarrier<RowTile, Tiles::kThreads> dout_carrier(thread, problem.dout.token);
        const int row = block * kRows, rows = p.queries - row;
        const std::uint32_t tile = stages + stage * Tiles::kStage;
        load_tile(q_carrier, tile, row_address<T>(p.q, b, row, head), rows, kRows);
        load_tile(dout_carrier, tile + RowTile::kBytes, row_address<T>(problem.dout, b, row, head),
                  rows, kRows);
        if (thread < Tiles::kRowData / 16) {
            const int array = thread / (kRows / 4), at = thread % (kRows / 4) * 4;
            const std::int64_t source =
                ((static_cast<std::int64_t>(b) * p.heads + head) * 3 + array) *
                    problem.padded_queries +
                row + at;
            copy_async(shared_address(row_data) + stage * Tiles::kRowData + thread * 16,
                       problem.rows + source);
        }
        commit_copies();
    };

    {
        const TileCarrier<KeyTile, Tiles::kThreads> key_carrier(threadIdx.x, p.k.token);
        const TileCarrier<KeyTile, Tiles::kThreads> value_carrier(threadIdx.x, p.v.token);
        load_tile(key_carrier, key_tile, row_address<T>(p.k, b, first_key, kv_head), keys,
                  Tiles::kKeys);
        load_tile(value_carrier, value_tile, row_address<T>(p.v, b, first_key, kv_head), keys,
                  Tiles::kKeys);
        commit_copies();
    }
    int head = kv_head * p.group, block = range.begin;
    if (steps > 0) load_rows(0, head, block);

    // s = k q^T and dv += p dout for one warp of a pair, dp = v dout^T and dk += ds q for the
    // other.
    const SquareLoader<KeyTile, Order::kDown> left(finds_p ? key_tile : value_tile,
                                                   pair * Tiles::kWarpKeys, lane);
    SquareLoader<RowTile, Order::kAcross> right(stages + (finds_p ? 0 : RowTile::kBytes), 0, lane);
    SquareLoader<RowTile, Order::kDown> across(stages + (finds_p ? RowTile::kBytes : 0), 0, lane);
    // Of this lane in the first of the pair's accumulators; they are 512 bytes apart.
    const std::uint32_t lane_hand_over =
        shared_address(shared) + kHandOverAt + pair * kDown * kAcross * 512 + lane * 16;
    Accumulator gradient[kDown][D / 8];
    clear(gradient);

    for (int step = 0; step < steps; ++step) {
        const int stage = step % 2, first_row = block * kRows;
        const bool whole = warp_range.whole_begin <= block && block < warp_range.whole_end;
        wait_for_copies<0>();
        __syncthreads();  // this step's rows are here, and the last step's have been read
        if (++block == range.end) block = range.begin, ++head;
        if (step + 1 < steps) load_rows(1 - stage, head, block);

        const float* const data = row_data + stage * 3 * kRows + lane % 4 * 2;
        Accumulator cells[kDown][kAcross];
        clear(cells);
        if (finds_p) multiply_rows<T, D / 16>(cells, left, right);
        __syncthreads();  // the pair's other warp starts its products when this one's are done
        if (finds_p) {
            Interval seeing[2 * kDown] = {};
            if (!kCapped && whole) {
                to_probabilities<false>(cells, data, data + kRows, p.scale_log2, seeing, 0);
            } else {
#pragma unroll
                for (int i = 0; i < 2 * kDown; ++i) {
                    const int key = warp_key + 8 * i + lane / 4;
                    if (key < p.keys) seeing[i] = seeing_queries(p.mask, key);
                }
                const int row = first_row + lane % 4 * 2;
                if constexpr (kCapped) {
                    cap_scores(cells, p.cap_scale);
                    to_capped_probabilities(cells, data, data + kRows, p.scale_log2, seeing, row,
                                            lane_hand_over);
                } else {
                    to_probabilities<true>(cells, data, data + kRows, p.scale_log2, seeing, row);
                }
            }
            if constexpr (!kCapped) {
#pragma unroll
                for (int i = 0; i < kDown; ++i) {
#pragma unroll
                    for (int j = 0; j < kAcross; ++j) {
                        hand_over(lane_hand_over + (i * kAcross + j) * 512, cells[i][j]);
                    }
                }
            }
        } else {
            multiply_rows<T, D / 16>(cells, left, right);
        }
        __syncthreads();  // p has been handed over
        if (!finds_p) {
#pragma unroll
            for (int j = 0; j < kAcross; ++j) {
                const float2 delta = *reinterpret_cast<const float2*>(data + 2 * kRows + 8 * j);
#pragma unroll
                for (int i = 0; i < kDown; ++i) {
                    const Accumulator of_p = take_over(lane_hand_over + (i * kAcross + j) * 512);
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        const float of_row = c % 2 == 0 ? delta.x : delta.y;
                        cells[i][j].c[c] = of_p.c[c] * (cells[i][j].c[c] - of_row);
                    }
                }
            }
        }
        multiply_cells<T>(gradient, cells, across);
        const int to_other_stage = stage == 0 ? Tiles::kStage : -Tiles::kStage;
        right.move(to_other_stage);
        across.move(to_other_stage);
    }

    wait_for_copies<0>();
    __syncthreads();  // k and v have been read: dv takes the place of k, dk that of v
    const float scale = finds_p ? 1.0f : p.scale;
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            Accumulator scaled = gradient[i][j];
#pragma unroll
            for (int c = 0; c < 4; ++c) scaled.c[c] *= scale;
            store_accumulator<T, KeyTile>(shared + (finds_p ? 0 : KeyTile::kBytes),
                                          pair * Tiles::kWarpKeys + 16 * i, j, lane, scaled);
        }
    }
    __syncthreads();
    store_tile<T, KeyTile, Tiles::kThreads>(problem.dv, shared, p.keys, this_tile() * Tiles::kKeys,
                                            this_head());
    store_tile<T, KeyTile, Tiles::kThreads>(problem.dk, shared + KeyTile::kBytes, p.keys,
                                            this_tile() * Tiles::kKeys, this_head());
}

}  // namespace evenkeel::cuda
