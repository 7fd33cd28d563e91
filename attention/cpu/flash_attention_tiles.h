// Register tiles and packing for flash_attention_kernels.cpp only.
//
// Everything is a product c[r][n] (+)= sum_k a[r][k] b[k][n] with fp32 c, vectors along n. Operands travel as
// 32-bit words: one fp32 number (kDepth 1), or two neighbours along k in bf16 (kDepth 2), multiplied by one
// instruction. The code is the same for both.
#pragma once

#include "attention/cpu/flash_attention.h"
#include "attention/cpu/flash_attention_simd.h"

namespace evenkeel::EVENKEEL_ISA {

// A tile is kRows x kVecs vectors of sums; with kVecs of b and one of a they fill the register file.
#if defined(__AVX512F__)
inline constexpr int kRows = 6, kVecs = 4;
#elif defined(__AVX2__)
inline constexpr int kRows = 6, kVecs = 2;
#else
inline constexpr int kRows = 4, kVecs = 2;
#endif
inline constexpr std::int64_t kPanel = kVecs * kLanes;  // columns of a tile

#if defined(__AVX512BF16__)
inline constexpr int kDepth = 2;
EVENKEEL_INLINE Vec multiply_add(Vec a, Vec b, Vec c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
#else
inline constexpr int kDepth = 1;
EVENKEEL_INLINE Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
#endif

EVENKEEL_INLINE std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
EVENKEEL_INLINE std::int64_t max(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
EVENKEEL_INLINE std::int64_t round_down(std::int64_t n, std::int64_t to) { return n / to * to; }
EVENKEEL_INLINE std::int64_t round_up(std::int64_t n, std::int64_t to) {
    return (n + to - 1) / to * to;
}
// Words from one row to the next: an odd number of cache lines, so that rows spread over all cache sets.
EVENKEEL_INLINE std::int64_t padded(std::int64_t words) { return ((words + 15) / 16 | 1) * 16; }

enum class Output {
    kStore,
    kStoreAndMax,  // and keep the running maximum of every row in row_max [rows][kLanes]
    kAdd,
};

struct TileOperands {
    const float* a;
    std::int64_t a_stride;
    const float* b;
    std::int64_t b_stride;
    float* c;
    std::int64_t c_stride;
    std::int64_t depth;  // words
    float* row_max;
};

// kTransposed: a is [k][r], else [r][k].
template <int kR, int kV, bool kTransposed, Output kOutput>
[[gnu::noinline]] void multiply_tile(const TileOperands& t) {
    Vec sum[kR][kV];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kV; ++v) {
            sum[r][v] = kOutput == Output::kAdd ? load(t.c + r * t.c_stride + v * kLanes) : Vec{};
        }
    }
    const float* a = t.a;
    const float* b = t.b;
    const std::int64_t a_stride = t.a_stride, b_stride = t.b_stride;
    const std::int64_t row = kTransposed ? 1 : a_stride, step = kTransposed ? a_stride : 1;
    for (std::int64_t k = t.depth; k > 0; --k) {
        Vec column[kV];
#pragma GCC unroll 4
        for (int v = 0; v < kV; ++v) column[v] = load(b + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r) {
            const Vec element = broadcast(a[r * row]);
#pragma GCC unroll 4
            for (int v = 0; v < kV; ++v) sum[r][v] = multiply_add(element, column[v], sum[r][v]);
        }
        a += step;
        b += b_stride;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
        [[maybe_unused]] Vec highest;
        if constexpr (kOutput == Output::kStoreAndMax) highest = load(t.row_max + r * kLanes);
#pragma GCC unroll 4
        for (int v = 0; v < kV; ++v) {
            const Vec value = sum[r][v];
            store(t.c + r * t.c_stride + v * kLanes, value);
            if constexpr (kOutput == Output::kStoreAndMax) highest = max(highest, value);
        }
        if constexpr (kOutput == Output::kStoreAndMax) store(t.row_max + r * kLanes, highest);
    }
}

using TileFunction = void (*)(const TileOperands&);

template <bool kTransposed, Output kOutput, int kR>
inline constexpr TileFunction kTilesOfHeight[kVecs] = {
    multiply_tile<kR, 1, kTransposed, kOutput>,
    multiply_tile<kR, 2, kTransposed, kOutput>,
#if defined(__AVX512F__)
    multiply_tile<kR, 3, kTransposed, kOutput>,
    multiply_tile<kR, 4, kTransposed, kOutput>,
#endif
};

template <bool kTransposed, Output kOutput>
inline constexpr const TileFunction* kTiles[kRows] = {
    kTilesOfHeight<kTransposed, kOutput, 1>, kTilesOfHeight<kTransposed, kOutput, 2>,
    kTilesOfHeight<kTransposed, kOutput, 3>, kTilesOfHeight<kTransposed, kOutput, 4>,
#if defined(__AVX2__)
    kTilesOfHeight<kTransposed, kOutput, 5>, kTilesOfHeight<kTransposed, kOutput, 6>,
#endif
};

// rows in 1 .. kRows, vecs in 1 .. kVecs.
template <bool kTransposed, Output kOutput>
EVENKEEL_INLINE void multiply(std::int64_t rows, std::int64_t vecs, const TileOperands& t) {
    kTiles<kTransposed, kOutput>[rows - 1][vecs - 1](t);
}

// Splits head_dim into column ranges of at most kPanel, as even as vectors allow.
struct Columns {
    explicit Columns(std::int64_t head_dim)
        : vecs(head_dim / kLanes), count((vecs + kVecs - 1) / kVecs) {}
    std::int64_t first(std::int64_t i) const { return vecs * i / count; }
    std::int64_t vecs, count;
};

// ---- Packing. `count` words of a row: D of them for kDepth 1, D / 2 for kDepth 2.

EVENKEEL_INLINE const void* row_at(
    const FlashOperand& x, bool bf16, std::int64_t b, std::int64_t t, std::int64_t n) {
    const std::int64_t offset = b * x.batch + t * x.token + n * x.head;
    return static_cast<const char*>(x.data) + offset * (bf16 ? 2 : 4);
}

EVENKEEL_INLINE Vec load_element(const void* row, bool bf16, std::int64_t d) {
    return bf16 ? load(static_cast<const std::uint16_t*>(row) + d)
                : load(static_cast<const float*>(row) + d);
}

EVENKEEL_INLINE void store_row(
    void* row, bool bf16, const float* values, float factor, std::int64_t n) {
    for (std::int64_t d = 0; d < n; d += kLanes) {
        const Vec v = load(values + d) * broadcast(factor);
        if (bf16) {
            store(static_cast<std::uint16_t*>(row) + d, v);
        } else {
            store(static_cast<float*>(row) + d, v);
        }
    }
}

EVENKEEL_INLINE void zero_words(float* words, std::int64_t n) {
    __builtin_memset(words, 0, static_cast<std::size_t>(n) * 4);
}

// One row as words along d.
EVENKEEL_INLINE void pack_row(const void* row, bool bf16, float* words, std::int64_t n) {
    if (kDepth == 2) {
        __builtin_memcpy(words, row, static_cast<std::size_t>(n) * 2);
        return;
    }
    for (std::int64_t d = 0; d < n; d += kLanes) {
        store(words + d, load_element(row, bf16, d));
    }
}

// Two rows as words that pair them up: (low[d], high[d]). high null: zeros.
EVENKEEL_INLINE void pack_row_pair(const void* low,
                                   const void* high,
                                   float* words,
                                   std::int64_t n) {
    for (std::int64_t d = 0; d < n; d += kLanes) {
        const BitVec upper =
            high ? (BitVec)load(static_cast<const std::uint16_t*>(high) + d) : BitVec{};
        const BitVec lower = (BitVec)load(static_cast<const std::uint16_t*>(low) + d) >> 16;
        store(words + d, (Vec)(upper | lower));
    }
}

// Columns for rows: element r of line c of the result is element c of line r.
EVENKEEL_INLINE void transpose(Vec (&lines)[kLanes]) {
#pragma GCC unroll 4
    for (int distance = 1; distance < kLanes; distance *= 2) {
        IntVec low, high;
        for (int i = 0; i < kLanes; ++i) {
            low[i] = i & distance ? kLanes + (i ^ distance) : i;
            high[i] = i & distance ? kLanes + i : i ^ distance;
        }
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) {
            if (r & distance) continue;
            const Vec a = lines[r], b = lines[r ^ distance];
            lines[r] = __builtin_shuffle(a, b, low);
            lines[r ^ distance] = __builtin_shuffle(a, b, high);
        }
    }
}

EVENKEEL_INLINE void prefetch_row(const void* row, bool bf16, std::int64_t head_dim) {
    for (std::int64_t at = 0; at < head_dim * (bf16 ? 2 : 4); at += 64)
        __builtin_prefetch(static_cast<const char*>(row) + at);
}

// kLanes words of a row, from word w.
EVENKEEL_INLINE Vec load_words(const void* row, bool bf16, std::int64_t w) {
    if (kDepth == 1) return load_element(row, bf16, w);
    return load(static_cast<const float*>(row) + w);
}

// Rows 0 .. count (row(i) points to one) as panels [panel][word along d][kPanel rows], zero beyond count.
template <typename Row>
EVENKEEL_INLINE void pack_transposed(
    const Row& row, bool bf16, std::int64_t count, std::int64_t head_dim, float* panels) {
    const std::int64_t words = head_dim / kDepth;
    for (std::int64_t i = 0; i < round_up(count, kPanel); i += kLanes) {
        float* to = panels + round_down(i, kPanel) * words + i % kPanel;
        const void* rows[kLanes];
        for (int r = 0; r < kLanes; ++r) rows[r] = i + r < count ? row(i + r) : nullptr;
        for (int r = 0; r < kLanes && i + kLanes + r < count; ++r)
            prefetch_row(row(i + kLanes + r), bf16, head_dim);
        for (std::int64_t next = 0; next < words; next += kLanes) {
            const std::int64_t w = min(next, words - kLanes);
            Vec lines[kLanes];
#pragma GCC unroll 16
            for (int r = 0; r < kLanes; ++r)
                lines[r] = rows[r] ? load_words(rows[r], bf16, w) : Vec{};
            transpose(lines);
#pragma GCC unroll 16
            for (int c = 0; c < kLanes; ++c) store(to + (w + c) * kPanel, lines[c]);
        }
    }
}

// Rows 0 .. count as the right operand of a sum over rows: [row or pair of rows][padded(head_dim)].
template <typename Row>
EVENKEEL_INLINE void pack_rows_as_right(
    const Row& row, bool bf16, std::int64_t count, std::int64_t head_dim, float* words) {
    const std::int64_t stride = padded(head_dim);
    constexpr std::int64_t kAhead = 16;
    for (std::int64_t i = 0; i < count; i += kDepth, words += stride) {
        for (int r = 0; r < kDepth && i + kAhead + r < count; ++r)
            prefetch_row(row(i + kAhead + r), bf16, head_dim);
        if (kDepth == 1) {
            pack_row(row(i), bf16, words, head_dim);
        } else {
            pack_row_pair(row(i), i + 1 < count ? row(i + 1) : nullptr, words, head_dim);
        }
    }
}

#if defined(__AVX512BF16__)
// Rows of fp32 as bf16 words along the row.
EVENKEEL_INLINE void round_row(const float* row, float* words, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const __m256bh h = _mm512_cvtneps_pbh(load(row + i));
        __builtin_memcpy(words + i / 2, &h, sizeof h);
    }
}
// Two rows as words that pair them up.
EVENKEEL_INLINE void round_row_pair(const float* low,
                                    const float* high,
                                    float* words,
                                    std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const auto l = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(load(low + i)));
        const auto h = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(load(high + i)));
        const __m512i pair = _mm512_or_si512(_mm512_cvtepu16_epi32(l),
                                             _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        store(words + i, reinterpret_cast<Vec>(pair));
    }
}
#endif

}  // namespace evenkeel::EVENKEEL_ISA
