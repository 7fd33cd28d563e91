// What the forward and backward kernels of QK-norm and RoPE share: which lane holds what, 16-byte
// accesses, the statistic and the rotation.
//
// A row (one head of one token) belongs to a group of neighbouring lanes. Each lane holds two
// chunks of 8 channels, chosen so that the two channels of every rotation pair meet in one lane:
// nothing is exchanged between lanes but the sum of the statistic.
//   half-split, R = rotary_dim a multiple of 16: lane l < R/16 holds chunks l and l + R/16, whose
//     channels turn with each other; the chunks that do not turn are shared out among the remaining
//     lanes.
//   interleaved, R a multiple of 8: lane l holds chunks l and l + D/16; pairs lie within a chunk.
//   any other R, and fp32 rows: as interleaved; each channel's partner is read a second time, alone.
// A group keeps its head and walks over tokens, so that gains (and sums of gain gradients) stay in
// registers, while the groups of a warp stand at neighbouring heads of the same token, whose angles
// they share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "framework/tensor.h"

namespace evenkeel::cuda::norm_rope {

inline constexpr int kWarp = 32;
inline constexpr int kWarps = 4;  // of a CTA
inline constexpr int kThreads = kWarps * kWarp;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kChunk = 8;  // channels in 16 bytes (in fp32: in 32)
inline constexpr int kHeld = 2 * kChunk;

enum class Layout { kHalfSplit, kInterleaved, kAny };
// What a kernel can do beside RMS and unit length: LayerNorm, one statistic a token and powers of the
// statistic take registers that would cost the usual kernels some of their warps.
enum class Norms { kUsual, kAll };

// Division of a number below 2^31 by a constant: a multiplication and a shift. With
// s = ceil(log2 d) and m = ceil(2^(31+s) / d), n m / 2^(31+s) exceeds n / d by less than 1 / d
// (Granlund and Montgomery 1994).
struct Divisor {
    std::uint32_t value = 1, multiplier = 0;
    int shift = 31;

    Divisor() = default;
    explicit Divisor(std::uint32_t d) : value(d) {
        while ((std::uint64_t{1} << (shift - 31)) < d) ++shift;
        multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + d - 1) / d);
    }
    __device__ std::uint32_t quotient(std::uint32_t n) const {
        return static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> shift);
    }
};

// Rows of D contiguous elements at base + b * batch + t * token + n * head (in elements).
struct Rows {
    void* base = nullptr;
    std::int64_t batch = 0, token = 0, head = 0;

    Rows() = default;
    explicit Rows(const Tensor& tensor)
        : base(tensor.raw()),
          batch(tensor.stride(0)),
          token(tensor.stride(1)),
          head(tensor.stride(2)) {}
};

// What all rows have in common.
struct Common {
    int tokens = 0;                  // T
    int chunk_tokens = 0;            // of a CTA; a chunk lies within one sequence
    Divisor chunks;                  // of a sequence
    std::uint32_t first_blocks = 0;  // CTAs of the first part; the rest are the second part's
    int rotary_dim = 0;              // R
    bool interleaved = false;        // for Layout::kAny
    bool norm = true;
    bool centred = false;          // the row's mean comes off first (LayerNorm)
    bool token_statistic = false;  // rstd (and mean, backward) are inputs, one a token
    float inverse_divisor = 0.0f;  // of sums of squares: 1 / D, or 1 for unit length
    // Centred rows are halved, because a value may be further from the mean than fp32 reaches: what
    // makes up for it. inverse_divisor does too.
    float restore = 1.0f;
    float eps = 0.0f, gain_offset = 0.0f;
    const float* lambda = nullptr;  // [1]: rows are multiplied with rstd^lambda; null: with rstd
    const float* cos = nullptr;     // [count, R/2]
    const float* sin = nullptr;
    const std::int32_t* positions = nullptr;  // null: token t stands in row t of the table
    std::int64_t positions_batch = 0, positions_token = 0;
    std::int64_t first = 0, count = 0;  // of the table
};

// Heads of a part, and the groups of lanes that walk over tokens: one for each head of each chunk.
struct Heads {
    Divisor count;
    std::uint32_t groups = 0;
};

template <int kDim>
struct Shape {
    static constexpr int kUsed = kDim / kHeld;  // lanes of a group with channels
    static constexpr int kLanes = kUsed <= 4 ? 4 : kUsed <= 8 ? 8 : 16;  // lanes of a group
    static constexpr int kGroups = kWarp / kLanes;
};

// This lane's place: its group's head and first token, its channels.
template <int kDim, Layout kLayout>
struct Place {
    int lane;             // within the group
    bool used;            // holds channels of an existing head
    std::uint32_t group;  // chunk * N + head
    int head;
    int b, t;  // the warps of a CTA take turns at tokens, so that it reads one stretch of memory
    int channel[2];  // first channels of the two chunks

    __device__ Place(const Common& common, const Heads& heads, std::uint32_t block) {
        using S = Shape<kDim>;
        const int in_warp = static_cast<int>(threadIdx.x % kWarp);
        lane = in_warp % S::kLanes;
        group = block * S::kGroups + in_warp / S::kLanes;
        used = group < heads.groups && lane < S::kUsed;
        const std::uint32_t chunk = heads.count.quotient(group);
        head = static_cast<int>(group - chunk * heads.count.value);
        b = static_cast<int>(common.chunks.quotient(chunk));
        const int chunk_of_sequence = static_cast<int>(chunk - b * common.chunks.value);
        t = chunk_of_sequence * common.chunk_tokens + static_cast<int>(threadIdx.x / kWarp);
        channel[0] = lane * kChunk;
        channel[1] = (lane + S::kUsed) * kChunk;
        if constexpr (kLayout == Layout::kHalfSplit) {
            const int half = common.rotary_dim / kHeld;  // lanes whose channels turn
            if (lane < half) {
                channel[1] = (lane + half) * kChunk;
            } else {
                channel[0] = (lane + half) * kChunk;
            }
        }
    }
    // This lane's first chunk in the first row of its walk; the second is so many channels apart.
    template <typename T>
    __device__ T* first(const Rows& rows) const {
        return static_cast<T*>(rows.base) + b * rows.batch + t * rows.token + head * rows.head +
               channel[0];
    }
    __device__ int apart() const { return channel[1] - channel[0]; }
    __device__ std::int64_t statistic(const Common& common, const Heads& heads) const {
        const std::int64_t token = static_cast<std::int64_t>(b) * common.tokens + t;
        return common.token_statistic ? token : token * heads.count.value + head;
    }
};

// The row of the table for a token; -1 outside.
__device__ __forceinline__ int angles_of(const Common& common, int b, int t, bool exists) {
    if (common.positions == nullptr || !exists) return t;
    const std::int64_t row =
        common.positions[b * common.positions_batch + t * common.positions_token] - common.first;
    return row >= 0 && row < common.count ? static_cast<int>(row) : -1;
}

// 16 channels as they stand in memory.
template <typename T>
struct Packed {
    static constexpr int kAccesses = kChunk * static_cast<int>(sizeof(T)) / 16;  // to a chunk
    uint4 chunk[2][kAccesses];
};

template <typename T>
__device__ __forceinline__ Packed<T> not_a_number() {
    Packed<T> packed;
#pragma unroll
    for (auto& chunk : packed.chunk) {
#pragma unroll
        for (uint4& access : chunk) access = {~0u, ~0u, ~0u, ~0u};
    }
    return packed;
}

template <typename T>
__device__ __forceinline__ Packed<T> load(const T* at, int apart, bool exists) {
    Packed<T> packed = {};
    if (exists) {
#pragma unroll
        for (int i = 0; i < Packed<T>::kAccesses; ++i) {
            packed.chunk[0][i] = reinterpret_cast<const uint4*>(at)[i];
            packed.chunk[1][i] = reinterpret_cast<const uint4*>(at + apart)[i];
        }
    }
    return packed;
}

template <typename T>
__device__ __forceinline__ float2 unpack(std::uint32_t pair);
template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(std::uint32_t pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
template <>
__device__ __forceinline__ float2 unpack<__half>(std::uint32_t pair) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

template <typename T>
__device__ __forceinline__ std::uint32_t pack(float a, float b);
template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float a, float b) {
    const __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
}

template <typename T>
__device__ __forceinline__ void unpack(const Packed<T>& packed, float (&values)[kHeld]) {
#pragma unroll
    for (int i = 0; i < 2 * Packed<T>::kAccesses; ++i) {
        const uint4& access = packed.chunk[i / Packed<T>::kAccesses][i % Packed<T>::kAccesses];
        const std::uint32_t words[4] = {access.x, access.y, access.z, access.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if constexpr (sizeof(T) == 4) {
                values[i * 4 + w] = __uint_as_float(words[w]);
            } else {
                const float2 pair = unpack<T>(words[w]);
                values[i * kChunk + 2 * w] = pair.x;
                values[i * kChunk + 2 * w + 1] = pair.y;
            }
        }
    }
}

// By the intrinsic: the compiler may split an assignment of 16 bytes into four.
template <typename T>
__device__ __forceinline__ void store(T* at, int apart, const float (&values)[kHeld]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float* v = values + i * kChunk;
        auto* const to = reinterpret_cast<uint4*>(at + i * apart);
        if constexpr (sizeof(T) == 4) {
            const auto bits = [v](int c) { return __float_as_uint(v[c]); };
            __stwb(to, make_uint4(bits(0), bits(1), bits(2), bits(3)));
            __stwb(to + 1, make_uint4(bits(4), bits(5), bits(6), bits(7)));
        } else {
            __stwb(to, make_uint4(pack<T>(v[0], v[1]), pack<T>(v[2], v[3]), pack<T>(v[4], v[5]),
                                  pack<T>(v[6], v[7])));
        }
    }
}

// Four consecutive values of a table that nobody writes meanwhile.
__device__ __forceinline__ void load_four(const float* from, float* to) {
    const float4 four = __ldg(reinterpret_cast<const float4*>(from));
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// The lane's 16 gains, offset added; ones where there is no gain.
__device__ __forceinline__ void load_gain(const float* gain,
                                          float offset,
                                          const int* channel,
                                          float (&values)[kHeld]) {
    if (gain == nullptr) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) values[i] = 1.0f;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) load_four(gain + channel[i / 2] + i % 2 * 4, values + i * 4);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) values[i] += offset;
}

template <int kLanes, typename Real>
__device__ __forceinline__ Real sum_over_group(Real value) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, step);
    }
    return value;
}

// What the mean of a row is kept in. Sums of fp32 values are not exact in fp32, and what the mean is
// off by would be all that is left of a row of one value.
template <typename T>
using Mean = std::conditional_t<sizeof(T) == 4, double, float>;

// The mean of each group's row; lanes without channels hold zeros. Exact where the sum is, so that
// nothing is left of a row of one value. A mean in fp32 adds parts of the values, whose sum always
// fits.
template <typename Real, int kDim>
__device__ __forceinline__ Real mean_of_row(const float (&x)[kHeld]) {
    constexpr Real kPart = std::is_same_v<Real, double> ? 1.0 : 1.0 / 512,
                   kInverse = 1.0 / kPart / kDim;
    Real even = 0, odd = 0;
#pragma unroll
    for (int i = 0; i < kHeld; i += 2) {
        even = fma(static_cast<Real>(x[i]), kPart, even);
        odd = fma(static_cast<Real>(x[i + 1]), kPart, odd);
    }
    const Real sum = sum_over_group<Shape<kDim>::kLanes>(even + odd);
    const Real mean = sum * kInverse;
    if constexpr ((kDim & (kDim - 1)) == 0) return mean;
    return fma(fma(-mean, kDim * kPart, sum), kInverse, mean);
}

// Half of what a value is away from the mean, given half the mean.
template <typename Real>
__device__ __forceinline__ float half_off_mean(float x, Real half_mean) {
    return static_cast<float>(fma(static_cast<Real>(x), Real{0.5}, -half_mean));
}

// Takes the mean off a row and halves what is left; returns half the mean.
template <typename T, int kDim>
__device__ __forceinline__ Mean<T> centre(float (&x)[kHeld], bool exists) {
    const Mean<T> shift = Mean<T>{0.5} * mean_of_row<Mean<T>, kDim>(x);
    const Mean<T> here = exists ? shift : 0;  // lanes without channels keep their zeros
#pragma unroll
    for (int i = 0; i < kHeld; ++i) x[i] = half_off_mean(x[i], here);
    return shift;
}

// The lane's columns of the table. Half-split: the 8 pairs of both chunks; interleaved: 4 of each.
template <int kDim, Layout kLayout>
struct Turn {
    static constexpr bool kHalfSplit = kLayout == Layout::kHalfSplit;
    const float* cos;
    const float* sin;
    bool turns[2];  // the chunk does

    __device__ Turn(const Common& common, const Place<kDim, kLayout>& place) {
        const int pair = kHalfSplit ? place.channel[0] : place.channel[0] / 2;
        cos = common.cos + pair;
        sin = common.sin + pair;
        turns[0] = place.channel[0] < (kHalfSplit ? common.rotary_dim / 2 : common.rotary_dim);
        turns[1] = kHalfSplit ? turns[0] : place.channel[1] < common.rotary_dim;
    }
};

// Turns (a, b) by the angle, kDirection -1: back.
template <int kDirection>
__device__ __forceinline__ void turn_pair(float& a, float& b, float cos, float sin) {
    const float old_a = a, s = kDirection > 0 ? sin : -sin;
    a = a * cos - b * s;
    b = b * cos + old_a * s;
}

// Turns the lane's channels of a row by the angles in that row of the table. In registers.
template <int kDirection, int kDim, Layout kLayout>
__device__ __forceinline__ void rotate(const Common& common,
                                       const Turn<kDim, kLayout>& turn,
                                       int row,
                                       bool exists,
                                       float (&v)[kHeld]) {
    // The second chunk turns only if the first does.
    if (!exists || row < 0 || !turn.turns[0]) return;
    const std::int64_t offset = static_cast<std::int64_t>(row) * (common.rotary_dim / 2);
    const float* const cos_row = turn.cos + offset;
    const float* const sin_row = turn.sin + offset;
    float cos[4], sin[4];
    load_four(cos_row, cos);
    load_four(sin_row, sin);
    if constexpr (kLayout == Layout::kHalfSplit) {
        float cos_next[4], sin_next[4];
        load_four(cos_row + 4, cos_next);
        load_four(sin_row + 4, sin_next);
#pragma unroll
        for (int p = 0; p < 4; ++p) turn_pair<kDirection>(v[p], v[p + kChunk], cos[p], sin[p]);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            turn_pair<kDirection>(v[p + 4], v[p + 4 + kChunk], cos_next[p], sin_next[p]);
        }
    } else {
        static_assert(kLayout == Layout::kInterleaved);
#pragma unroll
        for (int p = 0; p < 4; ++p) turn_pair<kDirection>(v[2 * p], v[2 * p + 1], cos[p], sin[p]);
        if (!turn.turns[1]) return;
        constexpr int kApart = Shape<kDim>::kUsed * kChunk / 2;
        load_four(cos_row + kApart, cos);
        load_four(sin_row + kApart, sin);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            turn_pair<kDirection>(v[kChunk + 2 * p], v[kChunk + 2 * p + 1], cos[p], sin[p]);
        }
    }
}

// The same where pairs lie anyhow: own channels in registers, partner(channel) for the others.
template <int kDirection, int kDim, typename Partner>
__device__ __forceinline__ void rotate_any(const Common& common,
                                           const Place<kDim, Layout::kAny>& place,
                                           int row,
                                           bool exists,
                                           float (&v)[kHeld],
                                           Partner&& partner) {
    if (!exists || row < 0) return;
    const int pairs = common.rotary_dim / 2;
    const std::int64_t offset = static_cast<std::int64_t>(row) * pairs;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int channel = place.channel[i / kChunk] + i % kChunk;
        if (channel >= common.rotary_dim) continue;
        bool is_first = channel < pairs;
        int other = is_first ? channel + pairs : channel - pairs;
        int pair = is_first ? channel : other;
        if (common.interleaved) {
            is_first = channel % 2 == 0;
            other = channel ^ 1;
            pair = channel / 2;
        }
        const float cos = __ldg(common.cos + offset + pair);
        const float sin = __ldg(common.sin + offset + pair) * kDirection;
        v[i] = v[i] * cos + partner(other) * (is_first ? -sin : sin);
    }
}

// rstd^lambda: 1 with lambda 0, also where rstd is 0 or no number; rstd to the bit with lambda 1.
__device__ __forceinline__ float power(float rstd, float lambda) {
    const float between = exp2f(lambda * log2f(rstd));
    return lambda == 0.0f ? 1.0f : lambda == 1.0f ? rstd : between;
}

template <typename T>
__device__ __forceinline__ float to_float(T value) {
    return static_cast<float>(value);
}

}  // namespace evenkeel::cuda::norm_rope
