// Flash attention on the CPU, compiled once per instruction set (cmake/EvenkeelIsa.cmake).
//
// Forward, per block of rows (Dao 2023, algorithm 1): for each block of keys and tile of rows, scores
// S = Q K^T in fp32, then per row the running maximum m, l = sum 2^t and a = sum 2^t t with t = (s - m) scale log2(e),
// then O += P V. l and a are kept per vector lane until the end; O, l and a are rescaled only when m has moved.
// Derivation, entropy included: docs/math.md.
//
// Backward, per block of keys (Dao 2023, algorithm 2): for each block of rows S and dP = dO V^T, then
// P = 2^(S - lse), dS = P (dP - delta), then dV += P^T dO, dK += dS^T Q, dQ += dS K. dK and dV stay in this
// block's fp32 sums over all rows and query heads of the group; the shares of dQ are added in the order of
// key blocks, so that the result does not depend on which thread does what.
//
// Only the register tiles that hold a visible score are computed; only those that also hold an invisible one
// pay for masks.
#include <sched.h>

#include "attention/cpu/flash_attention_softmax.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// ---- Forward

// Of the probabilities of a row whose keys have that sum and moment.
struct Spread {
    double entropy, largest;
};

Spread spread_of_row(const FlashProblem& p, std::int64_t h, float max, double sum, double moment) {
    if (sum == 0.0) return {0.0, p.sink ? 1.0 : 0.0};
    if (!p.sink) return {kLn2 * (__builtin_log2(sum) - moment / sum), 1.0 / sum};
    // Weights from here on count from the larger of the maximum and the sink.
    const double gap = p.sink[h] - score_scale(p) * max;
    const double rise = gap > 0.0 ? gap : 0.0, shrink = __builtin_exp(-rise);
    const double weight = __builtin_exp(gap - rise);
    const double total = shrink * sum + weight;
    double moments = shrink * (kLn2 * moment - rise * sum);
    if (weight > 0.0) moments += weight * (gap - rise);
    return {__builtin_log(total) - moments / total, 1.0 / total};
}

// max_dot and sums: of the block's heads; null without telemetry.
void finish_rows(const FlashProblem& p,
                 const RowBlock& rows,
                 const ForwardScratch& s,
                 float* max_dot,
                 FlashSums* sums) {
    for (std::int64_t i = 0; i < rows.count; ++i) {
        const std::int64_t t = rows.query(p, i), h = rows.head(p, i);
        const double sum = evenkeel::sum(load(s.sum + i * kLanes));
        const bool empty = sum == 0.0;
        const RowEnd end = end_row(p, h, s.max[i], sum);
        store_row(const_cast<void*>(rows.row(p, p.out, i)), p.bf16, s.out + i * s.right_stride,
                  empty ? 0.0f : static_cast<float>(1.0 / end.total), p.head_dim);
        *rows.lse(p, i) = static_cast<float>(end.lse);
        if (!max_dot || p.last[t] <= p.first[t]) continue;
        const std::int64_t g = h - rows.kv_head * p.group;
        const Spread spread =
            spread_of_row(p, h, s.max[i], sum, evenkeel::sum(load(s.moment + i * kLanes)));
        // Rounding can make the entropy of a one-hot row negative. NaN is kept in all of them.
        const double entropy = spread.entropy < 0.0 ? 0.0 : spread.entropy;
        sums[g].entropy += entropy;
        if (p.share_unit[t] > 0.0f) {
            constexpr double kSaturated = 1.0 - 0x1p-9;
            sums[g].entropy_share += entropy * p.share_unit[t];
            sums[g].saturated += spread.largest != spread.largest ? spread.largest
                                 : spread.largest >= kSaturated   ? 1.0
                                                                  : 0.0;
        }
        const float highest = p.softcap > 0.0 ? s.max_dot[i] : s.max[i];
        const float row_max = sum != sum ? static_cast<float>(sum) : highest;
        if (max_dot[g] == max_dot[g] && !(row_max <= max_dot[g])) max_dot[g] = row_max;
    }
}

void forward(const FlashProblem& p, std::int64_t kv, std::int64_t row_block, float* memory) {
    const RowBlock rows(p, kv, row_block);
    const ForwardScratch s(p, memory);
    if (!p.max_dot) {
        attend<false, true>(p, rows, kv, s);
        finish_rows(p, rows, s, nullptr, nullptr);
        return;
    }
    attend<true, true>(p, rows, kv, s);
    const std::int64_t blocks = (p.queries * p.group + kBlockRows - 1) / kBlockRows;
    float* max_dot = p.max_dot + (kv * blocks + row_block) * p.group;
    FlashSums* sums = p.sums + (kv * blocks + row_block) * p.group;
    for (std::int64_t g = 0; g < p.group; ++g) max_dot[g] = -kInfinity, sums[g] = {};
    finish_rows(p, rows, s, max_dot, sums);
}

void pack(const FlashProblem& p, std::int64_t kv, std::int64_t block) {
    const std::int64_t words = p.head_dim / kDepth;
    const std::int64_t b = kv / p.kv_heads, head = kv % p.kv_heads;
    const std::int64_t s0 = block * kForwardKeys, s1 = min(s0 + kForwardKeys, p.keys);
    const auto key = [&](std::int64_t i) { return row_at(p.k, p.bf16, b, s0 + i, head); };
    const auto value = [&](std::int64_t i) { return row_at(p.v, p.bf16, b, s0 + i, head); };
    pack_transposed(key, p.bf16, s1 - s0, p.head_dim,
                    p.packed_keys + (kv * round_up(p.keys, kPanel) + s0) * words);
    if (!p.packed_values) return;
    pack_rows_as_right(value, p.bf16, s1 - s0, p.head_dim,
                       p.packed_values + (kv * ((p.keys + kDepth - 1) / kDepth) + s0 / kDepth) *
                                             padded(p.head_dim));
}

// ---- Backward

std::int64_t backward_keys(const FlashProblem& p) { return p.head_dim <= 64 ? 256 : 128; }

struct BackwardScratch {
    std::int64_t keys, left_stride, tile, right_stride, words;
    float *keys_t, *values_t, *keys_right, *dk, *dv;                   // of the key block
    float *q, *dout, *q_right, *dout_right, *probabilities, *dscores;  // of the row block
    float *probability_pairs, *dscore_pairs, *dscore_words;            // kDepth 2: in bf16
    std::int64_t size;

    BackwardScratch(const FlashProblem& p, float* memory)
        : keys(backward_keys(p)),
          left_stride(padded(p.head_dim / kDepth)),
          tile(tile_stride(keys)),
          right_stride(padded(p.head_dim)),
          words(p.head_dim / kDepth) {
        Scratch scratch(memory);
        keys_t = scratch.take(keys * words);
        values_t = scratch.take(keys * words);
        keys_right = scratch.take(keys / kDepth * right_stride);
        dk = scratch.take(keys * right_stride);
        dv = scratch.take(keys * right_stride);
        q = scratch.take(kBlockRows * left_stride);
        dout = scratch.take(kBlockRows * left_stride);
        probabilities = scratch.take(kBlockRows * tile);
        dscores = scratch.take(kBlockRows * tile);
        q_right = q, dout_right = dout;
        probability_pairs = probabilities, dscore_pairs = dscores, dscore_words = dscores;
        if (kDepth == 2) {
            q_right = scratch.take(kBlockRows / 2 * right_stride);
            dout_right = scratch.take(kBlockRows / 2 * right_stride);
            probability_pairs = scratch.take(kBlockRows / 2 * tile);
            dscore_pairs = scratch.take(kBlockRows / 2 * tile);
            dscore_words = scratch.take(kBlockRows * padded(keys / 2));
        }
        size = scratch.used;
    }
};

void pack_row_block(const FlashProblem& p, const RowBlock& rows, const BackwardScratch& s) {
    for (std::int64_t i = 0; i < rows.count; ++i) {
        pack_row(rows.row(p, p.q, i), p.bf16, s.q + i * s.left_stride, p.head_dim);
        pack_row(rows.row(p, p.dout, i), p.bf16, s.dout + i * s.left_stride, p.head_dim);
    }
    if (kDepth == 1) return;
    pack_rows_as_right([&](std::int64_t i) { return rows.row(p, p.q, i); }, p.bf16, rows.count,
                       p.head_dim, s.q_right);
    pack_rows_as_right([&](std::int64_t i) { return rows.row(p, p.dout, i); }, p.bf16, rows.count,
                       p.head_dim, s.dout_right);
}

// Dot products to probabilities, and their gradients to those of the dot products (but for the softmax scale);
// zero where a row sees nothing.
template <bool kSoftcap>
void differentiate_row(float* x,
                       float* dx,
                       std::int64_t begin,
                       std::int64_t end,
                       std::int64_t width,
                       const FlashRow& row,
                       float log2_scale,
                       float tanh_scale) {
    const Vec scale = broadcast(log2_scale), shift = broadcast(row.shift),
              weight = broadcast(row.weight), mean = broadcast(row.delta);
    const std::int64_t outer_begin = round_down(begin, kLanes), outer_end = round_up(end, kLanes);
    zero_words(x, outer_begin);
    zero_words(dx, outer_begin);
    for (std::int64_t j = outer_begin; j < outer_end; j += kLanes) {
        Vec score = load(x + j), slope;
        if constexpr (kSoftcap) {
            const Tanh capped = tanh(score * broadcast(tanh_scale));
            score = capped.value, slope = capped.slope;
        }
        Vec p = exp2((score - shift) * scale) * weight;
        Vec d = p * (load(dx + j) - mean);
        if constexpr (kSoftcap) d *= slope;
        if (j < begin || j + kLanes > end) {
            p = where_inside(j, begin, end, p, Vec{});
            d = where_inside(j, begin, end, d, Vec{});
        }
        store(x + j, p);
        store(dx + j, d);
    }
    zero_words(x + outer_end, width - outer_end);
    zero_words(dx + outer_end, width - outer_end);
}

void differentiate_block(const FlashProblem& p,
                         const RowBlock& rows,
                         std::int64_t kv,
                         const BackwardScratch& s,
                         std::int64_t k0,
                         std::int64_t k1) {
    const std::int64_t width = round_up(k1 - k0, kPanel);
    const FlashRow* row = p.rows + kv * p.queries * p.group + rows.begin;
    for (std::int64_t i = 0; i < rows.count; ++i) {
        const std::int64_t t = rows.query(p, i);
        const std::int64_t begin = max(p.first[t], k0) - k0, end = min(p.last[t], k1) - k0;
        float* x = s.probabilities + i * s.tile;
        float* dx = s.dscores + i * s.tile;
        if (end <= begin) {
            zero_words(x, width);
            zero_words(dx, width);
        } else {
            const auto differentiate =
                p.softcap > 0.0 ? differentiate_row<true> : differentiate_row<false>;
            differentiate(x, dx, begin, end, width, row[i], log2_scale(p), tanh_scale(p));
        }
    }
#if defined(__AVX512BF16__)
    if (rows.count % 2 != 0) {
        zero_words(s.probabilities + rows.count * s.tile, width);
        zero_words(s.dscores + rows.count * s.tile, width);
    }
    for (std::int64_t i = 0; i < rows.count; i += 2) {
        const float* x = s.probabilities + i * s.tile;
        const float* dx = s.dscores + i * s.tile;
        round_row_pair(x, x + s.tile, s.probability_pairs + i / 2 * s.tile, width);
        round_row_pair(dx, dx + s.tile, s.dscore_pairs + i / 2 * s.tile, width);
        round_row(dx, s.dscore_words + i * padded(s.keys / 2), width);
        round_row(dx + s.tile, s.dscore_words + (i + 1) * padded(s.keys / 2), width);
    }
#endif
}

// sums[j][d] += sum over rows i of left[i][j] right[i][d], for keys k0 .. k1, over rows that see them.
void add_product_over_rows(const FlashProblem& p,
                           const RowBlock& rows,
                           const float* left,
                           std::int64_t left_stride,
                           const float* right,
                           std::int64_t right_stride,
                           std::int64_t k0,
                           std::int64_t k1,
                           float* sums) {
    const Columns columns(p.head_dim);
    for (std::int64_t c = 0; c < columns.count; ++c) {
        const std::int64_t column = columns.first(c) * kLanes;
        std::int64_t begin = 0, end = 0;
        for (std::int64_t j = k0; j < k1; j += kRows) {
            const std::int64_t count = min(kRows, k1 - j);
            while (begin < rows.count && p.last[rows.query(p, begin)] <= j) ++begin;
            while (end < rows.count && p.first[rows.query(p, end)] < j + count) ++end;
            const std::int64_t from = begin / kDepth, to = (end + kDepth - 1) / kDepth;
            if (to <= from) continue;
            multiply<true, Output::kAdd>(
                count, columns.first(c + 1) - columns.first(c),
                {left + from * left_stride + (j - k0), left_stride,
                 right + from * right_stride + column, right_stride,
                 sums + (j - k0) * right_stride + column, right_stride, to - from, nullptr});
        }
    }
}

void backward(const FlashProblem& p, std::int64_t kv, std::int64_t key_block, float* memory) {
    const BackwardScratch s(p, memory);
    const std::int64_t b = kv / p.kv_heads, head = kv % p.kv_heads;
    const std::int64_t k0 = key_block * s.keys, k1 = min(k0 + s.keys, p.keys);
    const auto key = [&](std::int64_t i) { return row_at(p.k, p.bf16, b, k0 + i, head); };
    const auto value = [&](std::int64_t i) { return row_at(p.v, p.bf16, b, k0 + i, head); };
    pack_transposed(key, p.bf16, k1 - k0, p.head_dim, s.keys_t);
    pack_transposed(value, p.bf16, k1 - k0, p.head_dim, s.values_t);
    pack_rows_as_right(key, p.bf16, k1 - k0, p.head_dim, s.keys_right);
    zero_words(s.dk, (k1 - k0) * s.right_stride);
    zero_words(s.dv, (k1 - k0) * s.right_stride);

    const std::int64_t row_blocks = (p.queries * p.group + kBlockRows - 1) / kBlockRows;
    for (std::int64_t block = 0; block < row_blocks; ++block) {
        const RowBlock rows(p, kv, block);
        const std::int64_t first_block = rows.first_key() / s.keys;
        if (key_block < first_block || k0 >= rows.last_key()) continue;
        pack_row_block(p, rows, s);
        multiply_by_keys(rows, rows.all_groups(), s.q, s.left_stride, s.keys_t, s.words, k0, k1,
                         s.probabilities, s.tile, nullptr);
        multiply_by_keys(rows, rows.all_groups(), s.dout, s.left_stride, s.values_t, s.words, k0,
                         k1, s.dscores, s.tile, nullptr);
        differentiate_block(p, rows, kv, s, k0, k1);
        add_product_over_rows(p, rows, s.probability_pairs, s.tile, s.dout_right, s.right_stride,
                              k0, k1, s.dv);
        add_product_over_rows(p, rows, s.dscore_pairs, s.tile, s.q_right, s.right_stride, k0, k1,
                              s.dk);

        int* turn = p.turn + kv * row_blocks + block;
        const auto mine = static_cast<int>(key_block - first_block);
        while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != mine) sched_yield();
        float* dq = p.dq_sum + (kv * p.queries * p.group + rows.begin) * p.head_dim;
        add_product_over_keys(rows, rows.all_groups(), s.dscore_words,
                              kDepth == 2 ? padded(s.keys / 2) : s.tile, s.keys_right,
                              s.right_stride, k0, k1, p.head_dim, dq, p.head_dim);
        __atomic_store_n(turn, mine + 1, __ATOMIC_RELEASE);
    }

    for (std::int64_t j = k0; j < k1; ++j) {
        store_row(const_cast<void*>(row_at(p.dk, p.bf16, b, j, head)), p.bf16,
                  s.dk + (j - k0) * s.right_stride, static_cast<float>(p.scale), p.head_dim);
        store_row(const_cast<void*>(row_at(p.dv, p.bf16, b, j, head)), p.bf16,
                  s.dv + (j - k0) * s.right_stride, 1.0f, p.head_dim);
    }
}

// delta = sum_d dout out. Its products are added in the same order as those of dP, with the same instruction:
// where a row has put all its weight on one key, out is that key's value, and dP - delta is exactly 0.
void find_deltas(const FlashProblem& p, const RowBlock& rows, float* memory, FlashRow* row) {
    const std::int64_t words = p.head_dim / kDepth;
    float* dout = memory;
    float* out = memory + round_up(kBlockRows, kPanel) * words;
    pack_transposed([&](std::int64_t i) { return rows.row(p, p.dout, i); }, p.bf16, rows.count,
                    p.head_dim, dout);
    pack_transposed([&](std::int64_t i) { return rows.row(p, p.out, i); }, p.bf16, rows.count,
                    p.head_dim, out);
    for (std::int64_t i = 0; i < rows.count; i += kLanes) {
        const std::int64_t at = round_down(i, kPanel) * words + i % kPanel;
        Vec sum{};
        for (std::int64_t w = 0; w < words; ++w) {
            sum = multiply_add(load(dout + at + w * kPanel), load(out + at + w * kPanel), sum);
        }
        float lanes[kLanes];
        store(lanes, sum);
        for (std::int64_t lane = 0; lane < min(kLanes, rows.count - i); ++lane) {
            row[i + lane].delta = lanes[lane];
        }
    }
}

// For rows whose lse is too coarse: what their keys sum to, found anew.
void refine_rows(const FlashProblem& p,
                 const RowBlock& rows,
                 std::int64_t kv,
                 float* memory,
                 FlashRow* row,
                 double* sink_share) {
    const ForwardScratch s(p, memory);
    if (p.bf16) {
        attend<false, true>(p, rows, kv, s);
    } else {
        attend<false, false>(p, rows, kv, s);
    }
    for (std::int64_t i = 0; i < rows.count; ++i) {
        const float sum = evenkeel::sum(load(s.sum + i * kLanes));
        const RowEnd end = end_row(p, rows.head(p, i), s.max[i], sum);
        const auto total = static_cast<float>(end.total);
        row[i].shift = s.max[i] == -kInfinity ? 0.0f : s.max[i];
        row[i].weight = sum == 0.0f ? 0.0f : 1.0f / total;
        sink_share[i] = end.sink_share;
        if (!p.bf16 || sum == 0.0f) continue;
        // The rounding of out to bf16 counts where large values almost cancel: add what it took off.
        const void *dout = rows.row(p, p.dout, i), *out = rows.row(p, p.out, i);
        const float* exact = s.out + i * s.right_stride;
        Vec rest{};
        for (std::int64_t d = 0; d < p.head_dim; d += kLanes) {
            rest += load_element(dout, true, d) *
                    (load(exact + d) / broadcast(total) - load_element(out, true, d));
        }
        row[i].delta += evenkeel::sum(rest);
    }
}

void prepare_rows(const FlashProblem& p, std::int64_t kv, std::int64_t row_block, float* memory) {
    const RowBlock rows(p, kv, row_block);
    FlashRow* row = p.rows + kv * p.queries * p.group + rows.begin;
    zero_words(p.dq_sum + (kv * p.queries * p.group + rows.begin) * p.head_dim,
               rows.count * p.head_dim);
    find_deltas(p, rows, memory, row);
    bool coarse = false;
    double sink_share[kBlockRows];
    const double scale = score_scale(p);
    for (std::int64_t i = 0; i < rows.count; ++i) {
        const float lse = *rows.lse(p, i);
        row[i].shift = static_cast<float>(lse / scale);
        // Makes up for the rounding of shift: e^x = 1 + x for x this small.
        row[i].weight = static_cast<float>(1.0 + (scale * row[i].shift - lse));
        // An infinite one is not made anew: gradients become NaN where the lse left fp32's range.
        const float size = __builtin_fabsf(lse);
        coarse |= size > p.coarse_lse && size != kInfinity;
        if (p.dsink) sink_share[i] = __builtin_exp(p.sink[rows.head(p, i)] - lse);
    }
    if (coarse) refine_rows(p, rows, kv, memory, row, sink_share);
    if (!p.dsink) return;
    const std::int64_t blocks = (p.queries * p.group + kBlockRows - 1) / kBlockRows;
    double* dsink = p.dsink + (kv * blocks + row_block) * p.group - rows.kv_head * p.group;
    for (std::int64_t i = 0; i < rows.count; ++i)
        dsink[rows.head(p, i)] -= sink_share[i] * row[i].delta;
}

void store_dq(const FlashProblem& p, std::int64_t kv, std::int64_t row_block) {
    const RowBlock rows(p, kv, row_block);
    for (std::int64_t i = 0; i < rows.count; ++i) {
        store_row(const_cast<void*>(rows.row(p, p.dq, i)), p.bf16,
                  p.dq_sum + (kv * p.queries * p.group + rows.begin + i) * p.head_dim,
                  static_cast<float>(p.scale), p.head_dim);
    }
}

FlashSizes sizes(const FlashProblem& p) {
    return {round_up(p.keys, kPanel) * (p.head_dim / kDepth),
            (p.keys + kDepth - 1) / kDepth * padded(p.head_dim),
            ForwardScratch(p, nullptr).size,
            max(ForwardScratch(p, nullptr).size,
                2 * round_up(kBlockRows, kPanel) * (p.head_dim / kDepth)),
            BackwardScratch(p, nullptr).size,
            kForwardKeys,
            kBlockRows,
            backward_keys(p)};
}

}  // namespace

extern const FlashKernels kFlashKernels;
const FlashKernels kFlashKernels = {sizes, pack, forward, prepare_rows, backward, store_dq};

}  // namespace evenkeel::EVENKEEL_ISA
