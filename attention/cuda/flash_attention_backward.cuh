// Backward of flash attention on a GPU, in three kernels without atomics (Dao 2023,
// FlashAttention-2, algorithm 2, as two passes). With s = q k, p = 2^((s - shift) scale_log2 +
// offset), dp = dout v:
//
//     prepare   one block per 64 rows of a head: delta = dout out and the row's {shift, offset}
//     keys      one block per key tile of a key head: ds = p (dp - delta), dv = sum p dout and
//               dk = sum ds q over the rows that see the tile, of all query heads of the group
//     queries   one block per row tile of a head: dq = sum ds k over the keys that the tile sees
//
// Seven products where one pass with atomic adds to dq would do with five: s and dp are found
// twice. In return every sum has one order, whatever the GPU's size and the scheduling; there is no
// fp32 copy of dq to write, add to and convert; and the gradients of a key head are summed over its
// query heads in registers and rounded once.
//
// Tiles (keys: key tile x row step; queries: row tile x key step) and shared memory:
//
//     D      keys                          queries                      prepare (64 rows, 4 warps)
//     64     128 x 64, 8 warps,  97.5 KiB  128 x 64, 4 warps,  48 KiB   24 KiB
//     96     128 x 64, 8 warps, 129.5 KiB  128 x 32, 4 warps,  60 KiB   36 KiB
//     128    128 x 64, 8 warps, 161.5 KiB  128 x 32, 4 warps,  80 KiB   48 KiB
//     256     64 x 32, 8 warps, 136.75 KiB 128 x 32, 8 warps, 160 KiB   96 KiB
//
// The limit is the path from shared memory to the tensor cores: a load of a 16x16 square takes 4
// cycles of a multiprocessor, a product m16n8k16 2 on an A100 and 1 at best on an H200. With 16
// rows to a warp a loaded square of B feeds 2 products, and loads would rule; so warps have 32 rows
// (16 for D = 256, whose sums fill the registers). Then dk and dv of 32 x 128 are 256 registers of
// sums: too many, so two warps share 32 keys. One finds s and p, and dv; the other dp, ds and dk,
// with p handed over in fp32 through shared memory. Per row step and warp at D = 128: 256 products,
// 48 + 32 loads of squares and 16 accesses of p, that is 0.375 per product; the queries kernel has
// 0.417. The p and ds that a product takes as operand A come from registers in both: the keys
// kernel computes transposed squares for that (keys down, queries across).
//
// The two warps of a pair sit on the same quarter of a multiprocessor and take turns: p is computed
// while the other warp multiplies dp, ds while the first multiplies dv, so that the tensor cores
// always have work. Copies of the next step overlap a whole step. In the queries kernel two blocks
// fill each other's gaps.
//
// Softcap: s becomes tanh(cap_scale q k), and ds is multiplied by 1 - s^2, in instances of keys and
// queries of their own: those without have no instruction for it. A cell takes 16 instructions more
// in either. In the keys kernel the first warp of a pair hands over p (1 - s^2), and all blocks are
// masked; at D = 128 a step has 32 rows (112.75 KiB), for the registers. A sink takes part in
// prepare only: a share in its gradient for every 16 rows, summed up by a kernel after it.
//
// Floor, B T = 16384 in one sequence, H = 32, K = 8, D = 128, no mask: a product over all cells is
// 2 * 32 * 16384^2 * 128 = 2.2 TFLOP, seven are 15.4 TFLOP: 49.3 ms at an A100's 312 TFLOP/s, 15.6
// ms at an H200's 989; causal half of that. Memory, in MB: q, out, dout and dq are 134.2 each, k, v,
// dk and dv 33.6, lse 2.1, the three numbers of every row 6.3. prepare reads dout, out and lse and
// writes rows (276.8); keys reads q, dout, k, v and rows and writes dk and dv (408.9); queries reads
// the same and writes dq (476.1): 1161.8 MB, 0.57 ms at 2.04 TB/s, 0.24 ms at 4.8 TB/s. So the
// products are the floor; counted as the usual five (11.0 TFLOP) it is 223 and 706 TFLOP/s.
#pragma once

#include "attention/cuda/flash_attention_backward_keys.cuh"
#include "attention/cuda/flash_attention_backward_queries.cuh"
#include "attention/cuda/flash_attention_backward_rows.cuh"
#include "framework/cuda.h"

namespace evenkeel::cuda {

template <typename T, int D, bool kCapped>
void launch_flash_backward(const FlashBackwardProblem& problem) {
    const char* op = "flash_attention_backward";
    const FlashProblem& p = problem.forward;
    auto blocks = [](int count, int size) { return (count + size - 1) / size; };
    using Prepare = PrepareTiles<D>;
    launch(op, flash_backward_prepare<T, D>,
           {grid_size(op, blocks(p.queries, Prepare::kRows), p.heads, p.batch),
            dim3(Prepare::kThreads), Prepare::kShared},
           problem);
    using Keys = KeysTiles<D, kCapped>;
    launch(op, flash_backward_keys<T, D, kCapped>,
           {grid_size(op, blocks(p.keys, Keys::kKeys), p.kv_heads, p.batch), dim3(Keys::kThreads),
            Keys::kShared},
           problem);
    using Queries = QueriesTiles<D>;
    const std::int64_t row_blocks = blocks(p.queries, Queries::kRows);
    launch(op, flash_backward_queries<T, D, kCapped>,
           {grid_size(op, row_blocks * p.group, p.kv_heads, p.batch), dim3(Queries::kThreads),
            Queries::kShared},
           problem);
}

template <typename T, int D>
void launch_flash_backward(const FlashBackwardProblem& problem) {
    if (problem.forward.cap_scale != 0.0f) {
        launch_flash_backward<T, D, true>(problem);
    } else {
        launch_flash_backward<T, D, false>(problem);
    }
}

template <typename T>
void launch_flash_backward(const FlashBackwardProblem& problem, std::int64_t head_dim) {
    switch (head_dim) {
        case 64:
            return launch_flash_backward<T, 64>(problem);
        case 96:
            return launch_flash_backward<T, 96>(problem);
        case 128:
            return launch_flash_backward<T, 128>(problem);
        case 256:
            return launch_flash_backward<T, 256>(problem);
    }
    EVENKEEL_CHECK(false, "flash_attention_backward", "head_dim: got ", head_dim,
                   ", want one of 64, 96, 128, 256 on a GPU");
}

}  // namespace evenkeel::cuda
