// A block of rows, what it sees, and its products with keys and values, for flash_attention_kernels.cpp only.
#pragma once

#include "attention/cpu/flash_attention_tiles.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

constexpr std::int64_t kBlockRows = 96;  // of a call
// Forward, a tile of rows passes a block of keys at a time: products with keys, softmax and products with
// values follow one another while the 24 x 512 scores are close, and the block's keys and values wait in the
// L2 cache for the next tile.
constexpr std::int64_t kForwardKeys = 512;
constexpr std::int64_t kTileRows = 24;
// Rows of a right operand that a product visits before it goes on to the next rows of the left one.
constexpr std::int64_t kSlice = 256;
constexpr std::int64_t kMaxGroups = (kBlockRows + kRows - 1) / kRows;

constexpr std::int64_t kTileGroups = kTileRows / kRows;
static_assert(kTileRows % kRows == 0 && kBlockRows % kTileRows == 0);

// Groups of kRows rows of a block.
struct Groups {
    std::int64_t begin, end;
};

// Rows begin .. end of one (batch, key head), in groups of kRows: what each group sees.
struct RowBlock {
    std::int64_t batch, kv_head, begin, count, groups;
    struct Keys {
        std::int64_t any_begin, any_end;  // seen by at least one row
        std::int64_t all_begin, all_end;  // seen by every row
    } keys[kMaxGroups];

    RowBlock(const FlashProblem& p, std::int64_t kv, std::int64_t block)
        : batch(kv / p.kv_heads), kv_head(kv % p.kv_heads), begin(block * kBlockRows) {
        count = min(kBlockRows, p.queries * p.group - begin);
        groups = (count + kRows - 1) / kRows;
        for (std::int64_t g = 0; g < groups; ++g) {
            const std::int64_t top = (begin + g * kRows) / p.group;
            const std::int64_t bottom = (begin + min((g + 1) * kRows, count) - 1) / p.group;
            keys[g] = {p.first[top], p.last[bottom], p.first[bottom], p.last[top]};
        }
    }
    Groups all_groups() const { return {0, groups}; }
    std::int64_t first_key() const { return keys[0].any_begin; }
    std::int64_t last_key() const { return keys[groups - 1].any_end; }
    std::int64_t rows_in(std::int64_t g) const { return min(kRows, count - g * kRows); }

    std::int64_t query(const FlashProblem& p, std::int64_t i) const {
        return (begin + i) / p.group;
    }
    std::int64_t head(const FlashProblem& p, std::int64_t i) const {
        return kv_head * p.group + (begin + i) % p.group;
    }
    const void* row(const FlashProblem& p, const FlashOperand& x, std::int64_t i) const {
        return row_at(x, p.bf16, batch, query(p, i), head(p, i));
    }
    float* lse(const FlashProblem& p, std::int64_t i) const {
        return p.lse + (batch * p.heads + head(p, i)) * p.queries + query(p, i);
    }
};

// scores[i][j] of the visible panels in keys k0 .. k1: left rows times packed panels (panels[0] holds
// key k0). With row_max, also the running maximum over panels that a whole group sees. All rows' operands but
// those of the result and row_max begin with the block's first row; these begin with that of `groups`.
void multiply_by_keys(const RowBlock& rows,
                      const Groups& groups,
                      const float* left,
                      std::int64_t left_stride,
                      const float* panels,
                      std::int64_t words,
                      std::int64_t k0,
                      std::int64_t k1,
                      float* scores,
                      std::int64_t stride,
                      float* row_max) {
    for (std::int64_t begin = k0; begin < k1; begin += kPanel) {
        const float* panel = panels + (begin - k0) * words;
        for (std::int64_t g = groups.begin; g < groups.end; ++g) {
            const RowBlock::Keys& keys = rows.keys[g];
            const std::int64_t end = min(min(begin + kPanel, k1), keys.any_end);
            if (end <= begin || begin + kPanel <= keys.any_begin) continue;
            TileOperands t{left + g * kRows * left_stride,
                           left_stride,
                           panel,
                           kPanel,
                           scores + (g - groups.begin) * kRows * stride + (begin - k0),
                           stride,
                           words,
                           nullptr};
            if (row_max && keys.all_begin <= begin && begin + kPanel <= keys.all_end) {
                t.row_max = row_max + (g - groups.begin) * kRows * kLanes;
                multiply<false, Output::kStoreAndMax>(rows.rows_in(g), kVecs, t);
            } else {
                multiply<false, Output::kStore>(rows.rows_in(g),
                                                (end - begin + kLanes - 1) / kLanes, t);
            }
        }
    }
}

// sums[i][d] += sum over keys k0 .. k1 of left[i][j] right[j][d]; left[0] and right[0] belong to k0. Left words
// outside a row's own keys, but inside its group's, are zero. left begins with the first row of `groups`, sums
// with the block's.
void add_product_over_keys(const RowBlock& rows,
                           const Groups& groups,
                           const float* left,
                           std::int64_t left_stride,
                           const float* right,
                           std::int64_t right_stride,
                           std::int64_t k0,
                           std::int64_t k1,
                           std::int64_t head_dim,
                           float* sums,
                           std::int64_t sums_stride) {
    const Columns columns(head_dim);
    for (std::int64_t slice = k0; slice < k1; slice += kSlice) {
        for (std::int64_t c = 0; c < columns.count; ++c) {
            const std::int64_t column = columns.first(c) * kLanes;
            for (std::int64_t g = groups.begin; g < groups.end; ++g) {
                const RowBlock::Keys& keys = rows.keys[g];
                const std::int64_t begin =
                    (max(slice, round_down(keys.any_begin, kDepth)) - k0) / kDepth;
                const std::int64_t end =
                    (min(min(slice + kSlice, k1), keys.any_end) - k0 + kDepth - 1) / kDepth;
                if (end <= begin) continue;
                multiply<false, Output::kAdd>(
                    rows.rows_in(g), columns.first(c + 1) - columns.first(c),
                    {left + (g - groups.begin) * kRows * left_stride + begin, left_stride,
                     right + begin * right_stride + column, right_stride,
                     sums + g * kRows * sums_stride + column, sums_stride, end - begin, nullptr});
            }
        }
    }
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
