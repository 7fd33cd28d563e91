#include "attention/retrofit/kl_rows.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kDoubles = 8;
#elif defined(__AVX2__)
constexpr int kDoubles = 4;
#else
constexpr int kDoubles = 2;
#endif
using Doubles = double __attribute__((vector_size(kDoubles * 8)));

[[gnu::always_inline]] inline Doubles load(const double* from) {
    Doubles value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}
[[gnu::always_inline]] inline void store(double* to, Doubles value) {
    __builtin_memcpy(to, &value, sizeof value);
}
[[gnu::always_inline]] inline double total(Doubles value) {
    double sum = 0.0;
    for (int lane = 0; lane < kDoubles; ++lane) sum += value[lane];
    return sum;
}

// N rows at a time, so that weights are loaded once for them and additions need not wait for each other.
template <int N>
[[gnu::always_inline]] inline void dots(const double* weights,
                                        const double* rows,
                                        std::int64_t width,
                                        double* logits) {
    Doubles sums[N] = {};
    for (std::int64_t c = 0; c < width; c += kDoubles) {
        const Doubles w = load(weights + c);
        for (int n = 0; n < N; ++n) sums[n] += w * load(rows + n * width + c);
    }
    for (int n = 0; n < N; ++n) logits[n] = total(sums[n]);
}

// A block of kTileRows x 2 vectors of the square.
constexpr int kTileRows = 4, kTileColumns = 2 * kDoubles;
static_assert(kKlWidthStep % kTileRows == 0 && kKlWidthStep % kTileColumns == 0);

[[gnu::always_inline]] inline void add_tile(
    const double* left, const double* right, std::int64_t count, std::int64_t width, double* to) {
    Doubles sums[kTileRows][2];
    for (int a = 0; a < kTileRows; ++a) {
        for (int b = 0; b < 2; ++b) sums[a][b] = load(to + a * width + b * kDoubles);
    }
    for (std::int64_t j = 0; j < count; ++j, left += width, right += width) {
        const Doubles r0 = load(right), r1 = load(right + kDoubles);
        for (int a = 0; a < kTileRows; ++a) {
            sums[a][0] += left[a] * r0;
            sums[a][1] += left[a] * r1;
        }
    }
    for (int a = 0; a < kTileRows; ++a) {
        for (int b = 0; b < 2; ++b) store(to + a * width + b * kDoubles, sums[a][b]);
    }
}

}  // namespace

void kl_dots(const double* weights,
             const double* rows,
             std::int64_t count,
             std::int64_t width,
             double* logits) {
    std::int64_t j = 0;
    for (; j + 4 <= count; j += 4) dots<4>(weights, rows + j * width, width, logits + j);
    for (; j < count; ++j) dots<1>(weights, rows + j * width, width, logits + j);
}

void kl_sum(
    const double* p, const double* rows, std::int64_t count, std::int64_t width, double* sum) {
    constexpr std::int64_t kAtOnce = kKlWidthStep;  // columns, held in registers over all rows
    for (std::int64_t c = 0; c < width; c += kAtOnce) {
        Doubles sums[kAtOnce / kDoubles] = {};
        for (std::int64_t j = 0; j < count; ++j) {
            const double* row = rows + j * width + c;
            for (int v = 0; v < kAtOnce / kDoubles; ++v) sums[v] += p[j] * load(row + v * kDoubles);
        }
        for (int v = 0; v < kAtOnce / kDoubles; ++v) store(sum + c + v * kDoubles, sums[v]);
    }
}

void kl_centred(const double* ab,
                const double* key,
                const double* mean,
                double root,
                std::int64_t width,
                double* row) {
    for (std::int64_t c = 0; c < width; c += kDoubles) {
        const Doubles feature =
            load(ab + c) * load(key + c) + load(ab + width + c) * load(key + width + c);
        store(row + c, root * (feature - load(mean + c)));
    }
}

void kl_add_squares(const double* rows, std::int64_t count, std::int64_t width, double* squares) {
    for (std::int64_t a = 0; a < width; a += kTileRows) {
        for (std::int64_t b = a / kTileColumns * kTileColumns; b < width; b += kTileColumns) {
            add_tile(rows + a, rows + b, count, width, squares + a * width + b);
        }
    }
}

}  // namespace evenkeel::EVENKEEL_ISA
