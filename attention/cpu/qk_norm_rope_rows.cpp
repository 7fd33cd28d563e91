// QK-norm and RoPE for a range of tokens. A row (one head of one token) comes once from memory and is written
// once; statistic, gain and rotation are fp32, in registers.
#include "attention/cpu/qk_norm_rope_rows.h"

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// How a row stands in registers while it turns.
enum class Path {
    kHalfSplit,  // half-split, all channels turn, halves are whole vectors: i turns with i + kVectors / 2
    kInterleaved,  // interleaved, all channels turn: vector 2 i, even channels, turns with 2 i + 1
    kInMemory,     // anything else: in order, turned through memory
};

// Loads or stores kVectors vectors. Split, two neighbours hold the even and the odd channels of their range;
// an odd one out at the end keeps its order.
template <int kVectors, bool kSplit, typename T>
EVENKEEL_INLINE void load_run(const T* from, Vec* run) {
    int i = 0;
    for (; kSplit && i + 1 < kVectors; i += 2) load_even_odd(from + i * kLanes, run[i], run[i + 1]);
    for (; i < kVectors; ++i) run[i] = load(from + i * kLanes);
}
template <int kVectors, bool kSplit, typename T>
EVENKEEL_INLINE void store_run(T* to, const Vec* run) {
    int i = 0;
    for (; kSplit && i + 1 < kVectors; i += 2) store_even_odd(to + i * kLanes, run[i], run[i + 1]);
    for (; i < kVectors; ++i) store(to + i * kLanes, run[i]);
}

// The order of channels in the registers of a row in memory of type T.
template <typename T, int kDim, Path kPath>
struct Order {
    static constexpr int kVectors = kDim / kLanes;
    static constexpr int kRuns = kPath == Path::kHalfSplit ? 2 : 1;
    static constexpr int kLength = kVectors / kRuns;
    static constexpr bool kSplit =
        kPath == Path::kInterleaved || (kPath == Path::kHalfSplit && sizeof(T) == 2);

    template <typename U>
    EVENKEEL_INLINE static void load(const U* from, Vec* row) {
        for (int i = 0; i < kRuns; ++i) {
            load_run<kLength, kSplit>(from + i * kLength * kLanes, row + i * kLength);
        }
    }
    EVENKEEL_INLINE static void store(T* to, const Vec* row) {
        for (int i = 0; i < kRuns; ++i) {
            store_run<kLength, kSplit>(to + i * kLength * kLanes, row + i * kLength);
        }
    }
};

template <typename InOrder, typename T>
EVENKEEL_INLINE void store_row(const QkNormRopeRows& rows, T* to, const Vec* row) {
    if constexpr (InOrder::kVectors * kLanes * sizeof(T) % 64 == 0) {
        if (rows.past_caches) {
            alignas(64) T values[InOrder::kVectors * kLanes];
            InOrder::store(values, row);
            return store_past_caches(to, values, sizeof values);
        }
    }
    InOrder::store(to, row);
}

// One token's index in the table of angles.
EVENKEEL_INLINE std::int64_t angle_index(const QkNormRopeRows& rows,
                                         std::int64_t b,
                                         std::int64_t t) {
    if (rows.positions == nullptr) return t;
    return rows.positions[b * rows.positions_batch + t * rows.positions_token] - rows.first;
}

// The rotation of one token's rows, back by the same angle if kInverse: in registers, cos and sin included.
template <typename T, int kDim, Path kPath, bool kInverse>
struct Rotation {
    static constexpr int kPairs = kDim / kLanes / 2;  // of vectors
    Vec cos[kPairs];
    Vec sin[kPairs];

    EVENKEEL_INLINE void find(const QkNormRopeRows& rows, std::int64_t b, std::int64_t t) {
        constexpr bool kSplit = kPath == Path::kHalfSplit && Order<T, kDim, kPath>::kSplit;
        const std::int64_t first = angle_index(rows, b, t) * (kDim / 2);
        load_run<kPairs, kSplit>(rows.cos + first, cos);
        load_run<kPairs, kSplit>(rows.sin + first, sin);
        for (int i = 0; kInverse && i < kPairs; ++i) sin[i] = -sin[i];
    }
    EVENKEEL_INLINE void apply(Vec* row) const {
        for (int i = 0; i < kPairs; ++i) {
            Vec& first = row[kPath == Path::kHalfSplit ? i : 2 * i];
            Vec& second = row[kPath == Path::kHalfSplit ? i + kPairs : 2 * i + 1];
            const Vec u = first, v = second;
            first = u * cos[i] - v * sin[i];
            second = v * cos[i] + u * sin[i];
        }
    }
};

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
    const std::int64_t index = angle_index(rows, b, t);
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

template <typename T, int kDim, bool kInverse>
struct Rotation<T, kDim, Path::kInMemory, kInverse> {
    Angles angles;

    EVENKEEL_INLINE void find(const QkNormRopeRows& rows, std::int64_t b, std::int64_t t) {
        if (rows.rotary_dim > 0) {
            find_angles<kInverse>(rows, b, t, angles);
        } else {
            angles.rotary_dim = 0;
        }
    }
    EVENKEEL_INLINE void apply(Vec* row) const {
        if (angles.rotary_dim == 0) return;
        alignas(64) float values[kDim];
        store_run<kDim / kLanes, false>(values, row);
        rotate_in_memory<kInverse>(values, angles);
        load_run<kDim / kLanes, false>(values, row);
    }
};

template <typename T>
EVENKEEL_INLINE T* row_at(const HeadRows& rows, std::int64_t b, std::int64_t t) {
    return static_cast<T*>(rows.base) + b * rows.batch + t * rows.token;
}

// Asks for a row so many tokens ahead, for reading or for writing: the arithmetic is long enough that the
// processor does not look that far ahead itself. Beyond the last row it does nothing.
template <int kDim, bool kWrite, typename T>
EVENKEEL_INLINE void prefetch(const HeadRows& rows, const T* row, std::int64_t tokens) {
    const auto at = reinterpret_cast<std::uintptr_t>(row) +
                    static_cast<std::uintptr_t>(tokens * rows.token) * sizeof(T);
    for (std::size_t i = 0; i < kDim * sizeof(T); i += 64) {
        __builtin_prefetch(reinterpret_cast<const void*>(at + i), kWrite);
    }
}
constexpr std::int64_t kReadAhead = 4, kWriteAhead = 2;  // tokens

template <int kDim, typename T>
EVENKEEL_INLINE Vec squares(const T* row) {
    Vec sums[2] = {};  // two, so that additions need not wait for each other
    int c = 0;
    for (; c + 2 * kLanes <= kDim; c += 2 * kLanes) {
        Vec& sum = sums[c / (2 * kLanes) % 2];
        sum = add_squares(sum, row + c);
    }
    if (c < kDim) {
        const Vec value = load(row + c);
        sums[1] += value * value;
    }
    return sums[0] + sums[1];
}

using Four = float __attribute__((vector_size(16)));

// 1 / root of four rows.
template <int kDim, typename T>
EVENKEEL_INLINE Four reciprocal_roots_of_four(const T* const* at,
                                              float inverse_divisor,
                                              float eps) {
    const Vec totals = sums(squares<kDim>(at[0]), squares<kDim>(at[1]), squares<kDim>(at[2]),
                            squares<kDim>(at[3]));
    Four rstd;
    __builtin_memcpy(&rstd, &totals, sizeof rstd);
    for (int i = 0; i < 4; ++i) rstd[i] = 1.0f / __builtin_sqrtf(rstd[i] * inverse_divisor + eps);
    return rstd;
}

// Outside of this range, or NaN, the squares may have over- or underflowed.
constexpr float kSmallRstd = 6e-20f;
constexpr float kLargeRstd = 1e15f;

EVENKEEL_INLINE bool is_usual(float rstd) { return rstd >= kSmallRstd && rstd <= kLargeRstd; }

// 1 / root of all heads of a token, none centred.
template <typename T, int kDim>
EVENKEEL_INLINE void find_statistics(const QkNormRopeRows& rows, std::int64_t token) {
    const T* x = row_at<T>(rows.x, token / rows.tokens, token % rows.tokens);
    float* rstd = rows.rstd + token * rows.heads;
    auto usual = Four{} == Four{};  // true in every lane
    for (std::int64_t n = 0; n < rows.heads; n += 4) {
        const std::int64_t left = rows.heads - n;
        const T* at[4];  // the last one repeated where there are fewer
        for (int i = 0; i < 4; ++i) at[i] = x + (n + (i < left ? i : left - 1)) * rows.x.head;
        const Four four = reciprocal_roots_of_four<kDim>(at, rows.inverse_divisor, rows.eps);
        usual &= (four >= kSmallRstd) & (four <= kLargeRstd);
        if (left >= 4) {
            __builtin_memcpy(rstd + n, &four, sizeof four);
        } else {
            for (std::int64_t i = 0; i < left; ++i) rstd[n + i] = four[i];
        }
    }
    if (usual[0] & usual[1] & usual[2] & usual[3]) [[likely]]
        return;
    for (std::int64_t n = 0; n < rows.heads; ++n) {
        if (is_usual(rstd[n])) continue;
        rstd[n] =
            careful_reciprocal_root(x + n * rows.x.head, kDim, 0.0,
                                    1.0 / static_cast<double>(rows.inverse_divisor), rows.eps);
    }
}

template <typename T>
[[gnu::noinline]] double careful_mean(const T* row, int dim) {
    double sum = 0.0;
    for (int c = 0; c < dim; ++c) sum += load_partial(row + c, 1)[0];
    return sum / dim;
}

// (x - mean) rstd for a row whose differences from the mean may not fit fp32.
template <typename T>
[[gnu::noinline]] void careful_unit_row(const T* row, int dim, float rstd, float* unit) {
    const double mean = careful_mean(row, dim);
    for (int c = 0; c < dim; ++c) {
        unit[c] = static_cast<float>((load_partial(row + c, 1)[0] - mean) * rstd);
    }
}

template <int kVectors>
EVENKEEL_INLINE float sum_of(const Vec* row) {
    Vec sums[2] = {};
    for (int i = 0; i < kVectors; ++i) sums[i % 2] += row[i];
    return sum(sums[0] + sums[1]);
}

// Takes its mean off a row in registers that stands at `from` in memory.
template <typename T, int kDim>
EVENKEEL_INLINE void centre(const T* from, Vec* row) {
    constexpr int kVectors = kDim / kLanes;
    float mean = sum_of<kVectors>(row) / kDim;
    if (!(__builtin_fabsf(mean) <= kLargeMean)) [[unlikely]] {
        mean = static_cast<float>(careful_mean(from, kDim));
    }
    for (int i = 0; i < kVectors; ++i) row[i] -= mean;
    if constexpr (sizeof(T) == 4) {
        // The mean of fp32 values is not exact: what it is off by would be all that is left of rows
        // that are nearly constant. (Sums of bf16 values are exact unless those differ much.)
        const float rest = sum_of<kVectors>(row) / kDim;
        if (__builtin_fabsf(rest) <= kLargeMean) {
            for (int i = 0; i < kVectors; ++i) row[i] -= rest;
        }
    }
}

// The statistic of a centred row in registers.
template <typename T, int kDim>
EVENKEEL_INLINE float centred_statistic(const T* from, const Vec* row, float eps) {
    Vec squares[kDim / kLanes];
    for (int i = 0; i < kDim / kLanes; ++i) squares[i] = row[i] * row[i];
    const float rstd = 1.0f / __builtin_sqrtf(sum_of<kDim / kLanes>(squares) / kDim + eps);
    if (is_usual(rstd)) [[likely]]
        return rstd;
    return careful_reciprocal_root(from, kDim, careful_mean(from, kDim), kDim, eps);
}

// Makes (x - mean) rstd of a centred row in registers.
template <typename InOrder, typename T, int kDim>
EVENKEEL_INLINE void scale_centred(const T* from, float rstd, Vec* row) {
    if (is_usual(rstd)) [[likely]] {
        for (int i = 0; i < kDim / kLanes; ++i) row[i] *= rstd;
        return;
    }
    alignas(64) float unit[kDim];
    careful_unit_row(from, kDim, rstd, unit);
    InOrder::load(unit, row);
}

EVENKEEL_INLINE float statistic(const QkNormRopeRows& rows, std::int64_t token, std::int64_t n) {
    return rows.rstd[rows.token_statistic ? token : token * rows.heads + n];
}

// What a row that is not centred is multiplied with.
EVENKEEL_INLINE float factor_of(const QkNormRopeRows& rows, std::int64_t token, std::int64_t n) {
    return rows.factor != nullptr ? rows.factor[token * rows.heads + n] : statistic(rows, token, n);
}

// Whatever has the power 0 becomes 1, also where the statistic is 0 or no number.
[[gnu::noinline]] void find_factors(const float* rstd,
                                    float lambda,
                                    float* factor,
                                    std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        factor[i] = lambda == 1.0f ? rstd[i] : __builtin_powf(rstd[i], lambda);
    }
}

EVENKEEL_INLINE void find_factors(const QkNormRopeRows& rows, std::int64_t token) {
    if (rows.factor == nullptr) return;
    const std::int64_t first = token * rows.heads;
    find_factors(rows.rstd + first, rows.lambda, rows.factor + first, rows.heads);
}

// The parameters come by value: no store can change a local copy, so they stay in registers. The statistics
// of the next token are formed before the rows of this one are written, which hides their latency.
template <typename T, int kDim, Path kPath>
void forward(const QkNormRopeRows rows, std::int64_t begin, std::int64_t end) {
    using InOrder = Order<T, kDim, kPath>;
    constexpr int kVectors = kDim / kLanes;
    Rotation<T, kDim, kPath, false> rotation;
    const bool find = rows.norm && !rows.centred && !rows.token_statistic;
    if (find) find_statistics<T, kDim>(rows, begin);
    for (std::int64_t token = begin; token < end; ++token) {
        find_factors(rows, token);
        if (find && token + 1 < end) find_statistics<T, kDim>(rows, token + 1);
        const std::int64_t b = token / rows.tokens, t = token % rows.tokens;
        rotation.find(rows, b, t);
        const T* x = row_at<T>(rows.x, b, t);
        T* y = row_at<T>(rows.y, b, t);
        const float* gain = rows.gain;
        for (std::int64_t n = 0; n < rows.heads;
             ++n, x += rows.x.head, y += rows.y.head, gain += rows.gain_head) {
            prefetch<kDim, false>(rows.x, x, kReadAhead);
            if (!rows.past_caches) prefetch<kDim, true>(rows.y, y, kWriteAhead);
            Vec row[kVectors];
            InOrder::load(x, row);
            if (rows.centred) {
                centre<T, kDim>(x, row);
                const float rstd = centred_statistic<T, kDim>(x, row, rows.eps);
                rows.rstd[token * rows.heads + n] = rstd;
                scale_centred<InOrder, T, kDim>(x, rstd, row);
                for (int i = 0; i < kVectors; ++i) row[i] *= load(gain + i * kLanes);
            } else if (rows.norm) {
                const float factor = factor_of(rows, token, n);
                for (int i = 0; i < kVectors; ++i) {
                    row[i] = row[i] * factor * load(gain + i * kLanes);
                }
            }
            rotation.apply(row);
            store_row<InOrder>(rows, y, row);
        }
    }
}

template <typename T, int kDim, Path kPath>
void backward(const QkNormRopeRows rows, std::int64_t begin, std::int64_t end, float* dgain) {
    using InOrder = Order<T, kDim, kPath>;
    constexpr int kVectors = kDim / kLanes;
    Rotation<T, kDim, kPath, true> rotation;
    for (std::int64_t token = begin; token < end; ++token) {
        find_factors(rows, token);
        const std::int64_t b = token / rows.tokens, t = token % rows.tokens;
        rotation.find(rows, b, t);
        const T* x = row_at<T>(rows.x, b, t);
        const T* dy = row_at<T>(rows.dy, b, t);
        T* dx = row_at<T>(rows.y, b, t);
        for (std::int64_t n = 0; n < rows.heads;
             ++n, x += rows.x.head, dy += rows.dy.head, dx += rows.y.head) {
            if (!rows.past_caches) prefetch<kDim, true>(rows.y, dx, kWriteAhead);
            Vec z[kVectors];  // the gradient turned back
            InOrder::load(dy, z);
            rotation.apply(z);
            if (rows.norm) {
                const float rstd = statistic(rows, token, n);
                const float* gain = rows.gain + n * rows.gain_head;
                Vec u[kVectors];
                InOrder::load(x, u);
                const float outer = factor_of(rows, token, n);
                float factor = rstd;  // that makes u of what stands there
                float scale = outer;  // that makes y of it, but for gain and rotation
                if (rows.centred) {
                    centre<T, kDim>(x, u);
                    scale_centred<InOrder, T, kDim>(x, rstd, u);
                    factor = scale = 1.0f;
                }
                Vec dot[2] = {};
                for (int i = 0; i < kVectors; ++i) {
                    if (dgain != nullptr) {
                        float* sums = dgain + n * kDim + i * kLanes;
                        store(sums, load(sums) + z[i] * (u[i] * scale));
                    }
                    u[i] *= factor;
                    z[i] *= load(gain + i * kLanes);
                    dot[i % 2] += z[i] * u[i];
                }
                const float mean = rows.token_statistic
                                       ? rows.mean[token]
                                       : sum(dot[0] + dot[1]) * rows.inverse_divisor * rows.lambda;
                if (rows.centred) {
                    const float shift = sum_of<kVectors>(z) / kDim;
                    for (int i = 0; i < kVectors; ++i) z[i] -= shift;
                }
                // With lambda 0 nothing may be taken off: it would change the sign of zeros.
                if (rows.lambda != 0.0f) [[likely]] {
                    for (int i = 0; i < kVectors; ++i) z[i] = (z[i] - u[i] * mean) * outer;
                }
            }
            store_row<InOrder>(rows, dx, z);
        }
    }
}

template <int kDim, typename F>
EVENKEEL_INLINE bool call_for(const QkNormRopeRows& rows, F&& f) {
    if (rows.dim != kDim) return false;
    if (rows.rotary_dim == kDim) {
        if constexpr (kDim % (2 * kLanes) == 0) {
            if (rows.interleaved) {
                f.template operator()<kDim, Path::kInterleaved>();
            } else {
                f.template operator()<kDim, Path::kHalfSplit>();
            }
            return true;
        }
    }
    f.template operator()<kDim, Path::kInMemory>();
    return true;
}

// Calls f.operator()<storage type, head width, path>().
template <typename F>
EVENKEEL_INLINE void dispatch(const QkNormRopeRows& rows, F&& f) {
    const auto for_dim = [&]<int kDim, Path kPath>() {
        if (rows.bf16) return f.template operator()<std::uint16_t, kDim, kPath>();
        f.template operator()<float, kDim, kPath>();
    };
    static_cast<void>(call_for<32>(rows, for_dim) || call_for<64>(rows, for_dim) ||
                      call_for<80>(rows, for_dim) || call_for<96>(rows, for_dim) ||
                      call_for<128>(rows, for_dim) || call_for<192>(rows, for_dim) ||
                      call_for<256>(rows, for_dim));
}

}  // namespace

void qk_norm_rope_forward_rows(const QkNormRopeRows& rows, std::int64_t begin, std::int64_t end) {
    dispatch(rows, [&]<typename T, int kDim, Path kPath>() {
        forward<T, kDim, kPath>(rows, begin, end);
    });
    if (rows.past_caches) finish_stores_past_caches();
}

void qk_norm_rope_backward_rows(const QkNormRopeRows& rows,
                                std::int64_t begin,
                                std::int64_t end,
                                float* dgain) {
    dispatch(rows, [&]<typename T, int kDim, Path kPath>() {
        backward<T, kDim, kPath>(rows, begin, end, dgain);
    });
    if (rows.past_caches) finish_stores_past_caches();
}

void qk_norm_rope_channel_order(const QkNormRopeRows& rows, std::int32_t* channels) {
    dispatch(rows, [&]<typename T, int kDim, Path kPath>() {
        float in_memory[kDim];
        for (int c = 0; c < kDim; ++c) in_memory[c] = static_cast<float>(c);
        Vec row[kDim / kLanes];
        Order<T, kDim, kPath>::load(in_memory, row);
        for (int c = 0; c < kDim; ++c) {
            channels[c] = static_cast<std::int32_t>(row[c / kLanes][c % kLanes]);
        }
    });
}

}  // namespace evenkeel::EVENKEEL_ISA
