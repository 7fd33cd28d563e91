// The running softmax of a block of rows over all keys they see, for flash_attention_kernels.cpp only: what forward
// is made of, and what backward does again for rows whose lse is too coarse.
#pragma once

#include "attention/cpu/flash_attention_rows.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

constexpr double kLog2E = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;
constexpr float kInfinity = __builtin_inff();

// From scores to logits. Scores are dot products, with a softcap c tanh(scale q k / c). The scale is not folded
// into q: differences of dot products are exact where it matters, close to the maximum, and scaled afterwards
// keep that accuracy however large the logits are.
double score_scale(const FlashProblem& p) { return p.softcap > 0.0 ? p.softcap : p.scale; }
float log2_scale(const FlashProblem& p) { return static_cast<float>(score_scale(p) * kLog2E); }
// From dot products to the argument of tanh; 0: no softcap.
float tanh_scale(const FlashProblem& p) {
    return p.softcap > 0.0 ? static_cast<float>(p.scale / p.softcap) : 0.0f;
}

// The tile's row stride, for `keys` scores.
std::int64_t tile_stride(std::int64_t keys) { return padded(keys); }

// Hands out pieces of a scratch area, each on a cache line.
struct Scratch {
    float* next;
    std::int64_t used = 0;
    explicit Scratch(float* memory) : next(memory) {}
    float* take(std::int64_t words) {
        const std::int64_t n = round_up(words, 16);
        float* piece = next ? next + used : nullptr;
        used += n;
        return piece;
    }
};

struct ForwardScratch {
    std::int64_t left_stride, tile, weight_stride, right_stride, words;
    float *q, *scores, *weights, *out, *sum, *moment, *row_max, *max, *max_dot;
    std::int64_t size;

    ForwardScratch(const FlashProblem& p, float* memory)
        : left_stride(padded(p.head_dim / kDepth)),
          tile(tile_stride(kForwardKeys)),
          weight_stride(tile_stride(kForwardKeys / kDepth)),
          right_stride(padded(p.head_dim)),
          words(p.head_dim / kDepth) {
        Scratch scratch(memory);
        q = scratch.take(kBlockRows * left_stride);
        scores = scratch.take(kTileRows * tile);
        weights = kDepth == 2 ? scratch.take(kTileRows * weight_stride) : scores;
        out = scratch.take(kBlockRows * right_stride);
        sum = scratch.take(kBlockRows * kLanes);
        moment = scratch.take(kBlockRows * kLanes);
        row_max = scratch.take(kTileRows * kLanes);
        max = scratch.take(kBlockRows);
        max_dot = scratch.take(kBlockRows);
        size = scratch.used;
    }
};

// Columns of a row in a block of keys, counted from its first: the row sees [begin, end), its group
// [group_begin, group_end), and row_max already covers [full_begin, full_end).
struct RowColumns {
    std::int64_t begin, end, group_begin, group_end, full_begin, full_end;
};

// What softmax_row makes of scores, from column j: the left operand of the product with values.
EVENKEEL_INLINE void store_weights(float* row, std::int64_t j, Vec weights) {
#if defined(__AVX512BF16__)
    const __m256bh words = _mm512_cvtneps_pbh(weights);
    __builtin_memcpy(row + j / 2, &words, sizeof words);
#else
    store(row + j, weights);
#endif
}
EVENKEEL_INLINE void store_weights(float* row, std::int64_t j, Vec low, Vec high) {
#if defined(__AVX512BF16__)
    const __m512bh words = _mm512_cvtne2ps_pbh(high, low);
    __builtin_memcpy(row + j / 2, &words, sizeof words);
#else
    store(row + j, low);
    store(row + j + kLanes, high);
#endif
}

// The running softmax of row i over a block of keys. x: its scores, in `weights` their probabilities relative
// to the running maximum (kDepth 1: in place). row_max: the maximum of each lane over the full columns.
template <bool kTelemetry>
void softmax_row(const ForwardScratch& s,
                 std::int64_t i,
                 float* x,
                 const float* row_max,
                 float* weights,
                 const RowColumns& c,
                 float log2_scale,
                 float tanh_scale,
                 std::int64_t head_dim) {
    Vec highest = load(row_max);
    for (std::int64_t j = round_down(c.begin, kLanes); j < c.end; j += kLanes) {
        if (j == c.full_begin && c.full_begin < c.full_end) j = c.full_end;
        if (j >= c.end) break;
        highest = max(highest, where_inside(j, c.begin, c.end, load(x + j), broadcast(-kInfinity)));
    }
    float block_max = max_of_lanes(highest);
    if (tanh_scale != 0.0f) {
        if (block_max > s.max_dot[i]) s.max_dot[i] = block_max;
        block_max = tanh(broadcast(block_max * tanh_scale)).value[0];
        for (std::int64_t j = round_down(c.begin, kLanes); j < c.end; j += kLanes)
            store(x + j, tanh(load(x + j) * broadcast(tanh_scale)).value);
    }
    Vec sum = load(s.sum + i * kLanes), moment = load(s.moment + i * kLanes);
    if (block_max > s.max[i]) {
        if (s.max[i] != -kInfinity) {
            const float move = log2_scale * (s.max[i] - block_max);
            const Vec shrink = exp2(broadcast(move));
            if constexpr (kTelemetry) moment = shrink * (moment + broadcast(move) * sum);
            sum = shrink * sum;
            float* out = s.out + i * s.right_stride;
            for (std::int64_t d = 0; d < head_dim; d += kLanes)
                store(out + d, shrink * load(out + d));
        }
        s.max[i] = block_max;
    }
    // Only for the subtraction: a row that has seen nothing but -inf keeps -inf as its maximum.
    const Vec shift = broadcast(s.max[i] == -kInfinity ? 0.0f : s.max[i]),
              scale = broadcast(log2_scale);

    const auto weigh = [&](std::int64_t j) {
        const Vec t = (load(x + j) - shift) * scale;
        const Vec weight = exp2(t);
        sum += weight;
        if constexpr (kTelemetry) moment += weight * t;
        return weight;
    };
    const auto edge = [&](std::int64_t j) {
        const Vec t = where_inside(j, c.begin, c.end, (load(x + j) - shift) * scale, Vec{});
        const Vec weight = where_inside(j, c.begin, c.end, exp2(t), Vec{});
        sum += weight;
        if constexpr (kTelemetry) moment += weight * t;
        store_weights(weights, j, weight);
    };
    const std::int64_t inner_begin = round_up(c.begin, kLanes),
                       inner_end = round_down(c.end, kLanes);
    std::int64_t j = round_down(c.group_begin, kLanes);
    for (; j < c.group_end && j < inner_begin; j += kLanes) edge(j);
    for (; j + kLanes < inner_end; j += 2 * kLanes) {
        const Vec low = weigh(j), high = weigh(j + kLanes);
        store_weights(weights, j, low, high);
    }
    for (; j < c.group_end; j += kLanes) edge(j);
    store(s.sum + i * kLanes, sum);
    if constexpr (kTelemetry) store(s.moment + i * kLanes, moment);
}

template <bool kTelemetry>
void softmax_tile(const FlashProblem& p,
                  const RowBlock& rows,
                  const Groups& groups,
                  const ForwardScratch& s,
                  std::int64_t k0,
                  std::int64_t k1) {
    const std::int64_t i0 = groups.begin * kRows, i1 = min(groups.end * kRows, rows.count);
    for (std::int64_t i = i0; i < i1; ++i) {
        const RowBlock::Keys& keys = rows.keys[i / kRows];
        const std::int64_t t = rows.query(p, i);
        RowColumns c;
        c.begin = max(p.first[t], k0) - k0;
        c.end = min(p.last[t], k1) - k0;
        c.group_begin = max(keys.any_begin, k0) - k0;
        c.group_end = min(keys.any_end, k1) - k0;
        if (c.group_end <= c.group_begin) continue;
        c.full_begin = round_up(max(keys.all_begin, k0) - k0, kPanel);
        c.full_end = round_down(min(keys.all_end, k1) - k0, kPanel);
        float* weights = s.weights + (i - i0) * s.weight_stride;
        if (c.end <= c.begin) {
            const std::int64_t begin = round_down(c.group_begin, kLanes);
            zero_words(weights + begin / kDepth, (round_up(c.group_end, kLanes) - begin) / kDepth);
        } else {
            softmax_row<kTelemetry>(s, i, s.scores + (i - i0) * s.tile,
                                    s.row_max + (i - i0) * kLanes, weights, c, log2_scale(p),
                                    tanh_scale(p), p.head_dim);
        }
    }
}

// All keys of a block of rows: leaves max, sum and moment, and with kWeighValues the sums of values.
template <bool kTelemetry, bool kWeighValues>
void attend(const FlashProblem& p, const RowBlock& rows, std::int64_t kv, const ForwardScratch& s) {
    for (std::int64_t i = 0; i < rows.count; ++i) {
        pack_row(rows.row(p, p.q, i), p.bf16, s.q + i * s.left_stride, p.head_dim);
        s.max[i] = s.max_dot[i] = -kInfinity;
    }
    zero_words(s.out, rows.count * s.right_stride);
    zero_words(s.sum, rows.count * kLanes);
    zero_words(s.moment, rows.count * kLanes);

    const float* packed_keys = p.packed_keys + kv * round_up(p.keys, kPanel) * s.words;
    for (std::int64_t k0 = round_down(rows.first_key(), kForwardKeys); k0 < rows.last_key();
         k0 += kForwardKeys) {
        const std::int64_t k1 = min(k0 + kForwardKeys, rows.last_key());
        const std::int64_t first = kv * ((p.keys + kDepth - 1) / kDepth) + k0 / kDepth;
        for (std::int64_t g = 0; g < rows.groups; g += kTileGroups) {
            const Groups groups{g, min(g + kTileGroups, rows.groups)};
            if (rows.keys[groups.end - 1].any_end <= k0 || rows.keys[g].any_begin >= k1) continue;
            for (std::int64_t i = 0; i < kTileRows; ++i)
                store(s.row_max + i * kLanes, broadcast(-kInfinity));
            multiply_by_keys(rows, groups, s.q, s.left_stride, packed_keys + k0 * s.words, s.words,
                             k0, k1, s.scores, s.tile, s.row_max);
            softmax_tile<kTelemetry>(p, rows, groups, s, k0, k1);
            if constexpr (kWeighValues) {
                add_product_over_keys(rows, groups, s.weights, s.weight_stride,
                                      p.packed_values + first * s.right_stride, s.right_stride, k0,
                                      k1, p.head_dim, s.out, s.right_stride);
            }
        }
    }
}

// What a row's sums over its keys come to, the sink included. Weights count from the row's maximum.
struct RowEnd {
    double lse, total;  // total: the sum of all weights; infinite where the sink's is
    double sink_share;  // the sink's probability
};

RowEnd end_row(const FlashProblem& p, std::int64_t h, float max, double sum) {
    const double highest = score_scale(p) * max;
    if (!p.sink) {
        return {sum == 0.0 ? -kInfinity : highest + kLn2 * __builtin_log2(sum), sum, 0.0};
    }
    const double sink = p.sink[h];
    if (sum == 0.0) return {sink, sum, 1.0};
    const double gap = sink - highest, weight = __builtin_exp(gap), total = sum + weight;
    if (gap > 0.0) {
        const double keys = sum / weight;
        return {sink + __builtin_log1p(keys), total, 1.0 / (1.0 + keys)};
    }
    return {highest + __builtin_log(total), total, weight / total};
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
