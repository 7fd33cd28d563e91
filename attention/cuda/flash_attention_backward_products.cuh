// What the kernels of the backward pass have in common: products of tiles, and which block this is.
#pragma once

#include "attention/cuda/flash_attention_backward.h"
#include "attention/cuda/flash_attention_mask.cuh"
#include "attention/cuda/mma.cuh"

namespace evenkeel::cuda {

template <typename T>
__device__ __forceinline__ char* row_address(const FlashRows& x, int b, int token, int head) {
    return static_cast<char*>(x.data) +
           (b * x.batch + token * x.token + head * x.head) * static_cast<std::int64_t>(sizeof(T));
}

// sums[i][j] += left (16 kDown rows, loaded as A) times right (8 kAcross rows, as B) transposed.
// The rows start at kLeft and kRight: past the end of a tile lies the next one.
template <typename T,
          int kSquares,
          int kLeft = 0,
          int kRight = 0,
          int kDown,
          int kAcross,
          typename Left,
          typename Right>
__device__ __forceinline__ void multiply_rows(Accumulator (&sums)[kDown][kAcross],
                                              const Left& left,
                                              const Right& right) {
#pragma unroll
    for (int square = 0; square < kSquares; ++square) {
        Square a[kDown];
#pragma unroll
        for (int i = 0; i < kDown; ++i) a[i] = left.load(kLeft + 16 * i, square);
#pragma unroll
        for (int j = 0; j < kAcross / 2; ++j) {
            const Square b = right.load(kRight + 16 * j, square);
#pragma unroll
            for (int i = 0; i < kDown; ++i) {
                multiply_add<T>(sums[i][2 * j], a[i], b.r[0], b.r[1]);
                multiply_add<T>(sums[i][2 * j + 1], a[i], b.r[2], b.r[3]);
            }
        }
    }
}

// sums[i][j] += cells (rounded to T) times right, whose rows are the columns of cells.
template <typename T, int kDown, int kAcross, int kCells, typename Right>
__device__ __forceinline__ void multiply_cells(Accumulator (&sums)[kDown][kAcross],
                                               const Accumulator (&cells)[kDown][kCells],
                                               const Right& right) {
#pragma unroll
    for (int k = 0; k < kCells / 2; ++k) {
        Square a[kDown];
#pragma unroll
        for (int i = 0; i < kDown; ++i) a[i] = pack<T>(cells[i][2 * k], cells[i][2 * k + 1]);
#pragma unroll
        for (int j = 0; j < kAcross / 2; ++j) {
            const Square b = right.template load<true>(16 * k, j);
#pragma unroll
            for (int i = 0; i < kDown; ++i) {
                multiply_add<T>(sums[i][2 * j], a[i], b.r[0], b.r[1]);
                multiply_add<T>(sums[i][2 * j + 1], a[i], b.r[2], b.r[3]);
            }
        }
    }
}

// Softcap: scores become tanh(cap_scale s).
template <int kDown, int kAcross>
__device__ __forceinline__ void cap_scores(Accumulator (&s)[kDown][kAcross], float cap_scale) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
#pragma unroll
            for (int c = 0; c < 4; ++c) s[i][j].c[c] = tanh_approx(s[i][j].c[c] * cap_scale);
        }
    }
}

template <int kDown, int kAcross>
__device__ __forceinline__ void clear(Accumulator (&sums)[kDown][kAcross]) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) sums[i][j] = {{0.0f, 0.0f, 0.0f, 0.0f}};
    }
}

template <typename Carrier>
__device__ __forceinline__ void load_tile(
    const Carrier& carrier, std::uint32_t tile, const void* from, int rows, int tile_rows) {
    if (rows >= tile_rows) {
        carrier.template load<true>(tile, from, rows);
    } else {
        carrier.template load<false>(tile, from, rows);
    }
}

__device__ __forceinline__ int warp_of_thread() {
    // By a shuffle the compiler sees that it is the same for all lanes.
    return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
}

// threadIdx.x, read anew where it is asked for, like blockIdx by this_tile() and the like.
__device__ __forceinline__ int this_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
__device__ __forceinline__ bool inside(const Interval& interval, int i) {
    return interval.begin <= i && i < interval.end;
}

// The block's tile of a gradient with `rows` rows to global memory.
template <typename T, typename Layout, int kThreads>
__device__ __forceinline__ void store_tile(
    const FlashRows& gradient, const unsigned char* tile, int rows, int first_row, int head) {
    const TileCarrier<Layout, kThreads> carrier(this_thread(), gradient.token);
    carrier.store(row_address<T>(gradient, this_batch(), first_row, head), tile,
                  min(rows - first_row, Layout::kRows));
}

}  // namespace evenkeel::cuda
