// QK-norm and RoPE for a range of tokens. A row (one head of one token) comes once from memory and is written
// once; statistic, gain and rotation are fp32, in registers.
#include "attention/qk_norm_rope_rows.h"

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

template <typename T, int kDim>
EVENKEEL_INLINE float sum_of_squares(const T* row) {
    Vec sums[2] = {};  // two, so that additions need not wait for each other
    for (int i = 0; i < kDim / kLanes; ++i) {
        const Vec value = load(row + i * kLanes);
        sums[i % 2] += value * value;
    }
    return sum(sums[0] + sums[1]);
}

// cos and sin of one token's angles; sin with the sign of the direction for the interleaved layout,
// where both are spread out to one value a channel.
struct Angles {
    const float* cos;
    const float* sin;
    int rotary_dim;
    bool interleaved;
    alignas(64) float spread_cos[kMaxHeadDim];
    alignas(64) float spread_sin[kMaxHeadDim];
};

// kInverse turns back by the same angle.
template <bool kInverse>
EVENKEEL_INLINE void find_angles(const QkNormRopeRows& rows,
                                 std::int64_t b,
                                 std::int64_t t,
                                 Angles& angles) {
    const std::int64_t index =
        rows.positions == nullptr
            ? t
            : rows.positions[b * rows.positions_batch + t * rows.positions_token] - rows.first;
    const int pairs = rows.rotary_dim / 2;
    angles.cos = rows.cos + index * pairs;
    angles.sin = rows.sin + index * pairs;
    angles.rotary_dim = rows.rotary_dim;
    angles.interleaved = rows.interleaved;
    if (!rows.interleaved) return;
    for (int p = 0; p < pairs; ++p) {
        angles.spread_cos[2 * p] = angles.spread_cos[2 * p + 1] = angles.cos[p];
        angles.spread_sin[2 * p] = kInverse ? angles.sin[p] : -angles.sin[p];
        angles.spread_sin[2 * p + 1] = kInverse ? -angles.sin[p] : angles.sin[p];
    }
}

// Turns a row in memory, any layout and rotary width.
template <bool kInverse>
EVENKEEL_INLINE void rotate_in_memory(float* row, const Angles& angles) {
    const int pairs = angles.rotary_dim / 2;
    if (angles.interleaved) {
        int c = 0;
        for (; c + kLanes <= angles.rotary_dim; c += kLanes) {
            const Vec value = load(row + c);
            store(row + c, value * load(angles.spread_cos + c) +
                               swap_lanes<1>(value) * load(angles.spread_sin + c));
        }
        for (; c < angles.rotary_dim; c += 2) {
            const float u = row[c], v = row[c + 1];
            row[c] = u * angles.spread_cos[c] + v * angles.spread_sin[c];
            row[c + 1] = v * angles.spread_cos[c] + u * angles.spread_sin[c + 1];
        }
        return;
    }
    int p = 0;
    for (; p + kLanes <= pairs; p += kLanes) {
        const Vec u = load(row + p), v = load(row + pairs + p);
        const Vec cos = load(angles.cos + p);
        const Vec sin = kInverse ? -load(angles.sin + p) : load(angles.sin + p);
        store(row + p, u * cos - v * sin);
        store(row + pairs + p, v * cos + u * sin);
    }
    for (; p < pairs; ++p) {
        const float u = row[p], v = row[pairs + p];
        const float sin = kInverse ? -angles.sin[p] : angles.sin[p];
        row[p] = u * angles.cos[p] - v * sin;
        row[pairs + p] = v * angles.cos[p] + u * sin;
    }
}

// kWhole: half-split, all channels turn, halves are whole vectors. Such a row stays in registers.
template <int kDim, bool kWhole, bool kInverse>
EVENKEEL_INLINE void rotate(Vec* row, const Angles& angles) {
    constexpr int kVectors = kDim / kLanes;
    if constexpr (kWhole) {
        for (int i = 0; i < kVectors / 2; ++i) {
            const Vec u = row[i], v = row[i + kVectors / 2];
            const Vec cos = load(angles.cos + i * kLanes);
            const Vec sin =
                kInverse ? -load(angles.sin + i * kLanes) : load(angles.sin + i * kLanes);
            row[i] = u * cos - v * sin;
            row[i + kVectors / 2] = v * cos + u * sin;
        }
    } else if (angles.rotary_dim > 0) {
        alignas(64) float values[kDim];
        for (int i = 0; i < kVectors; ++i) store(values + i * kLanes, row[i]);
        rotate_in_memory<kInverse>(values, angles);
        for (int i = 0; i < kVectors; ++i) row[i] = load(values + i * kLanes);
    }
}

template <typename T>
EVENKEEL_INLINE T* row_at(const HeadRows& rows, std::int64_t b, std::int64_t t) {
    return static_cast<T*>(rows.base) + b * rows.batch + t * rows.token;
}

// Statistics formed one after another before their rows are written: enough for square roots and divisions
// to overlap, few enough for the rows to stay in L1.
constexpr std::int64_t kHeads = 8;

// The parameters come by value: no store can change a local copy, so they stay in registers.
template <typename T, int kDim, bool kWhole>
void forward(const QkNormRopeRows rows, std::int64_t begin, std::int64_t end) {
    constexpr int kVectors = kDim / kLanes;
    Angles angles;
    for (std::int64_t token = begin; token < end; ++token) {
        const std::int64_t b = token / rows.tokens, t = token % rows.tokens;
        find_angles<false>(rows, b, t, angles);
        const T* x = row_at<T>(rows.x, b, t);
        T* y = row_at<T>(rows.y, b, t);
        float* rstd = rows.norm ? rows.rstd + token * rows.heads : nullptr;
        for (std::int64_t first = 0; first < rows.heads; first += kHeads) {
            const std::int64_t last = first + kHeads < rows.heads ? first + kHeads : rows.heads;
            for (std::int64_t n = first; rows.norm && n < last; ++n) {
                const T* row = x + n * rows.x.head;
                rstd[n] = reciprocal_rms(sum_of_squares<T, kDim>(row), row, kDim, rows.eps);
            }
            for (std::int64_t n = first; n < last; ++n) {
                const T* in = x + n * rows.x.head;
                T* out = y + n * rows.y.head;
                Vec row[kVectors];
                for (int i = 0; i < kVectors; ++i) row[i] = load(in + i * kLanes);
                if (rows.norm) {
                    const float* gain = rows.gain + n * rows.gain_head;
                    for (int i = 0; i < kVectors; ++i) {
                        row[i] = row[i] * rstd[n] * load(gain + i * kLanes);
                    }
                }
                rotate<kDim, kWhole, false>(row, angles);
                for (int i = 0; i < kVectors; ++i) store(out + i * kLanes, row[i]);
            }
        }
    }
}

template <typename T, int kDim, bool kWhole>
void backward(const QkNormRopeRows rows, std::int64_t begin, std::int64_t end, float* dgain) {
    constexpr int kVectors = kDim / kLanes;
    Angles angles;
    for (std::int64_t token = begin; token < end; ++token) {
        const std::int64_t b = token / rows.tokens, t = token % rows.tokens;
        find_angles<true>(rows, b, t, angles);
        const T* x = row_at<T>(rows.x, b, t);
        const T* dy = row_at<T>(rows.dy, b, t);
        T* dx = row_at<T>(rows.y, b, t);
        for (std::int64_t n = 0; n < rows.heads;
             ++n, x += rows.x.head, dy += rows.dy.head, dx += rows.y.head) {
            Vec z[kVectors];  // the gradient turned back
            for (int i = 0; i < kVectors; ++i) z[i] = load(dy + i * kLanes);
            rotate<kDim, kWhole, true>(z, angles);
            if (rows.norm) {
                const float rstd = rows.rstd[token * rows.heads + n];
                const float* gain = rows.gain + n * rows.gain_head;
                Vec u[kVectors];  // x / rms
                Vec dot{};
                for (int i = 0; i < kVectors; ++i) {
                    u[i] = load(x + i * kLanes) * rstd;
                    const Vec zu = z[i] * u[i];
                    const Vec g = load(gain + i * kLanes);
                    dot += g * zu;
                    if (dgain != nullptr) {
                        float* sums = dgain + n * kDim + i * kLanes;
                        store(sums, load(sums) + zu);
                    }
                    z[i] *= g;
                }
                const float mean = sum(dot) / kDim;
                for (int i = 0; i < kVectors; ++i) z[i] = (z[i] - u[i] * mean) * rstd;
            }
            for (int i = 0; i < kVectors; ++i) store(dx + i * kLanes, z[i]);
        }
    }
}

template <int kDim, typename F>
EVENKEEL_INLINE bool call_for(const QkNormRopeRows& rows, F&& f) {
    if (rows.dim != kDim) return false;
    if constexpr (kDim / 2 % kLanes == 0) {
        if (!rows.interleaved && rows.rotary_dim == kDim) {
            f.template operator()<kDim, true>();
            return true;
        }
    }
    f.template operator()<kDim, false>();
    return true;
}

// Calls f.operator()<head width, rotation in registers>().
template <typename F>
EVENKEEL_INLINE void dispatch(const QkNormRopeRows& rows, F&& f) {
    static_cast<void>(call_for<32>(rows, f) || call_for<64>(rows, f) || call_for<80>(rows, f) ||
                      call_for<96>(rows, f) || call_for<128>(rows, f) || call_for<192>(rows, f) ||
                      call_for<256>(rows, f));
}

}  // namespace

void qk_norm_rope_forward_rows(const QkNormRopeRows& rows, std::int64_t begin, std::int64_t end) {
    dispatch(rows, [&]<int kDim, bool kWhole>() {
        if (rows.bf16) return forward<std::uint16_t, kDim, kWhole>(rows, begin, end);
        forward<float, kDim, kWhole>(rows, begin, end);
    });
}

void qk_norm_rope_backward_rows(const QkNormRopeRows& rows,
                                std::int64_t begin,
                                std::int64_t end,
                                float* dgain) {
    dispatch(rows, [&]<int kDim, bool kWhole>() {
        if (rows.bf16) return backward<std::uint16_t, kDim, kWhole>(rows, begin, end, dgain);
        backward<float, kDim, kWhole>(rows, begin, end, dgain);
    });
}

}  // namespace evenkeel::EVENKEEL_ISA
