// Sequence parallelism (Korthikanti et al. 2022, section 4.2.2): what happens to each token by itself between two
// products (norms, residual adds) is done by a tensor-parallel rank for a part of the tokens only. The rows of a
// [B, T, C] stream, B T of them, are cut into P contiguous parts, of which each rank holds one as [1, B T / P, C].
// In front of a column-parallel product the parts are gathered; behind a row-parallel one the sum over ranks is
// scattered to them: together as many bytes as the sum on every rank. Parts lie one behind the other as rows of the
// whole do, so nothing is transposed.
//
// B batch, T positions, C width, P tensor-parallel size.
#pragma once

#include <cstdint>

#include "framework/parameter.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// How a pass holds its stream: every rank all rows, [B, T, C], or a part of them as above.
struct SequenceRegion {
    std::int64_t batch = 0,
                 positions = 0;  // B, T of a stream that is cut; 0: all rows on every rank

    bool is_cut() const { return batch * positions > 0; }
};

// Of a pass over [B, T] tokens: cut if the grid has sequence parallelism and P divides B T. Virtual shards
// (ParallelConfig) go without.
SequenceRegion sequence_region(const ProcessGrid& grid, std::int64_t batch, std::int64_t positions);

// Over which ranks the gradient of a parameter is a part that is used on every row of a stream, or added to it: with
// sequence parallelism each rank sees its own rows only.
GradientSum gradient_sum_over_rows(const ProcessGrid& grid);

// Rows that are there after wait().
struct [[nodiscard]] PendingRows {
    Tensor rows;
    Pending pending;

    Tensor wait() {
        pending.wait();
        return rows;
    }
};

// All rows [B, T, C] of a stream of which x is what this rank holds; x itself where nothing is cut, or x is all rows.
Tensor gather_rows(const ProcessGrid& grid, const SequenceRegion& region, const Tensor& x);
PendingRows start_gather_rows(const ProcessGrid& grid,
                              const SequenceRegion& region,
                              const Tensor& x);

// The sum over ranks of `parts` [B, T, C], as the region holds it: in place where nothing is cut. The bits of a row
// are the same either way where sums are formed in rank order (communicator.h). What is in `parts` is of no use
// afterwards.
Tensor sum_rows(const ProcessGrid& grid, const SequenceRegion& region, const Tensor& parts);
PendingRows start_sum_rows(const ProcessGrid& grid,
                           const SequenceRegion& region,
                           const Tensor& parts);

}  // namespace evenkeel
