// Flash attention in fp32: what its three kernels share. It is for debugging, for comparing a GPU with
// the CPU, and for small studies: fp32 products without tensor cores (and so without TF32), written to
// be read, not to be fast.
//
// A block of 4 warps owns 16 rows of one head (of keys: 16 keys of a key head) and walks over 32 rows
// of the other kind at a time. Both lie in shared memory. A warp does all that belongs to its own 4
// rows, so that sums along a row need no other warp; every sum has one order. It works in turns:
//
//     multiply    a lane has one row of the walk, and finds its product with each of the 4 own rows
//     accumulate  a lane has every 32nd channel, and adds the rows of the walk to the 4 own rows' sums,
//                 with weights that the lanes of the first turn hand around
//
//     forward  owns q;       walks k, v;     s = q k, out += p v
//     queries  owns q, dout; walks k, v;     s, dp = dout v, dq += ds k; twice over the keys, because
//              what p and ds need of a row comes first
//     keys     owns k, v;    walks q, dout;  s, dp, dv += p dout, dk += ds q
//
// With a row's maximum m and the sum l of e^(logit - m), both found anew in backward, p = e^(logit - m)
// / l and ds = p (dp - delta), delta = sum p dp. (lse as a number of fp32 is off by its size times 2^-24,
// which as a factor of p is more than a rounding of fp32.)
//
// Shared memory at D = 256: forward 81 KiB, backward 97 KiB.
//
// Floor, B T = 16384 in one sequence, H = 32, D = 128, no mask: a product over all cells is 2 * 32 *
// 16384^2 * 128 = 2.2 TFLOP. Forward has two, 4.4 TFLOP: 226 ms at the 19.5 TFLOP/s of an A100 without
// tensor cores, 66 ms at an H200's 67; backward nine, 19.8 TFLOP: 1.0 s and 295 ms. Causal half of that.
// Memory is no limit: a block reads all keys and values that it sees, from the second-level cache. What
// it will not come near to: multiply has 5 loads of 16 bytes to 16 multiply-adds, 8 cycles of shared memory
// to 4 of arithmetic, accumulate at D = 128 8 to 4, so that half the rate is the most.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/cuda/flash_attention_mask.cuh"
#include "attention/cuda/mma.cuh"

namespace evenkeel::cuda::fp32 {

inline constexpr int kWarp = 32, kWarps = 4, kThreads = kWarp * kWarps;
// Blocks on a multiprocessor that registers are to leave room for.
template <int kMost>
inline constexpr int kBlocks = kMost <= 128 ? 4 : 2;
inline constexpr int kOwn = 4;  // rows of a warp
inline constexpr int kRows = kOwn * kWarps;
inline constexpr int kWalk = kWarp;
inline constexpr unsigned kAllLanes = 0xffffffffu;
// Stands in for the logarithm of 0 where 0 ln 0 must be 0; e^-1024 is 0.
inline constexpr float kFarBelow = -1024.0f;

// D, the head width, is a number of the call. kMost: the largest that a kernel takes, for its registers.
// Own rows lie D floats apart, and those of the walk 4 more, because lanes read them below one another:
// 4 banks apart.
struct Width {
    int D;
    __device__ __forceinline__ int walk_stride() const { return D + 4; }
    __host__ __device__ int own_tile() const { return kRows * D; }  // floats
    __host__ __device__ int walk_tile() const { return kWalk * (D + 4); }
};
// Dynamic shared memory of a block: a tile of its own rows and two of the walk; two of each.
inline int forward_shared_bytes(Width width) {
    return 4 * (width.own_tile() + 2 * width.walk_tile());
}
inline int backward_shared_bytes(Width width) { return 8 * (width.own_tile() + width.walk_tile()); }

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarp; }

// `count` rows from `first` on; zeros from row `end` on.
__device__ __forceinline__ void load_rows(float* tile,
                                          int count,
                                          int stride,
                                          Width width,
                                          const FlashRows& from,
                                          int b,
                                          int head,
                                          int first,
                                          int end) {
    const float* const source =
        static_cast<const float*>(from.data) + b * from.batch + head * from.head;
    const int lane = lane_of_thread();
    for (int row = warp_index(); row < count; row += kWarps) {
        for (int channel = lane * 4; channel < width.D; channel += kWarp * 4) {
            float4 four = {};
            if (first + row < end) {
                four = *reinterpret_cast<const float4*>(
                    source + (static_cast<std::int64_t>(first) + row) * from.token + channel);
            }
            *reinterpret_cast<float4*>(tile + row * stride + channel) = four;
        }
    }
}
__device__ __forceinline__ void load_own(
    float* tile, Width width, const FlashRows& from, int b, int head, int first, int end) {
    load_rows(tile, kRows, width.D, width, from, b, head, first, end);
}
__device__ __forceinline__ void load_walk(
    float* tile, Width width, const FlashRows& from, int b, int head, int first, int end) {
    load_rows(tile, kWalk, width.walk_stride(), width, from, b, head, first, end);
}

// Products of the warp's own rows with the lane's row of the walk. Always in the order of channels, and
// the same to the bit whichever of the two is owned.
__device__ __forceinline__ void multiply(const float* own,
                                         const float* walk,
                                         Width width,
                                         float (&products)[kOwn]) {
    const float* const mine = own + warp_index() * kOwn * width.D;
    const float* const other = walk + lane_of_thread() * width.walk_stride();
#pragma unroll
    for (int r = 0; r < kOwn; ++r) products[r] = 0.0f;
#pragma unroll 1
    for (int d = 0; d < width.D; d += 4) {
        const float4 y = *reinterpret_cast<const float4*>(other + d);
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
            const float4 x = *reinterpret_cast<const float4*>(mine + r * width.D + d);
            products[r] = fmaf(x.x, y.x, products[r]);
            products[r] = fmaf(x.y, y.y, products[r]);
            products[r] = fmaf(x.z, y.z, products[r]);
            products[r] = fmaf(x.w, y.w, products[r]);
        }
    }
}

// Sums of the warp's own rows; a lane has channels lane, lane + 32, ...
template <int kMost>
struct Sums {
    static constexpr int kChannels = kMost / kWarp;
    float of[kOwn][kChannels] = {};

    // weights: of the own rows and the lane's row of the walk.
    __device__ __forceinline__ void accumulate(const float (&weights)[kOwn],
                                               const float* walk,
                                               Width width) {
        const float* row = walk + lane_of_thread();
#pragma unroll 1
        for (int j = 0; j < kWalk; ++j) {
            float weight[kOwn];
#pragma unroll
            for (int r = 0; r < kOwn; ++r) weight[r] = __shfl_sync(kAllLanes, weights[r], j);
#pragma unroll
            for (int i = 0; i < kChannels; ++i) {
                if (i * kWarp >= width.D) break;
                const float x = row[i * kWarp];
#pragma unroll
                for (int r = 0; r < kOwn; ++r) of[r][i] = fmaf(weight[r], x, of[r][i]);
            }
            row += width.walk_stride();
        }
    }

    // factors[r] times row r to row first + r, where that is before `end`.
    __device__ __forceinline__ void store(const FlashRows& to,
                                          Width width,
                                          int b,
                                          int head,
                                          int first,
                                          int end,
                                          const float (&factors)[kOwn]) const {
        float* row = static_cast<float*>(to.data) + b * to.batch + head * to.head +
                     first * to.token + lane_of_thread();
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
            if (first + r < end) {
#pragma unroll
                for (int i = 0; i < kChannels; ++i) {
                    if (i * kWarp < width.D) row[i * kWarp] = of[r][i] * factors[r];
                }
            }
            row += to.token;
        }
    }
};

template <typename Combine>
__device__ __forceinline__ float over_warp(float x, const Combine& combine) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
        x = combine(x, __shfl_xor_sync(kAllLanes, x, step));
    }
    return x;
}
__device__ __forceinline__ float sum_of_warp(float x) {
    return over_warp(x, [](float a, float b) { return a + b; });
}
// NaN is left out.
__device__ __forceinline__ float max_of_warp(float x) {
    return over_warp(x, [](float a, float b) { return fmaxf(a, b); });
}

__device__ __forceinline__ bool inside(const Interval& interval, int i) {
    return interval.begin <= i && i < interval.end;
}

// q k to a score: with softcap tanh(cap_scale q k).
__device__ __forceinline__ float score_of(float product, float cap_scale) {
    return cap_scale != 0.0f ? tanhf(product * cap_scale) : product;
}

// The score's derivative, over cap_scale with softcap: 1 - tanh^2 as e (2 - e), where e = 1 - tanh of the
// magnitude, so that nothing cancels.
__device__ __forceinline__ float slope_of(float product, float cap_scale) {
    if (cap_scale == 0.0f) return 1.0f;
    const float e = 2.0f / (1.0f + expf(2.0f * fabsf(product * cap_scale)));
    return e * (2.0f - e);
}

// Where nothing has been seen the maximum is -inf, and sums are relative to 0.
__device__ __forceinline__ float finite_base(float base) { return base == -INFINITY ? 0.0f : base; }

// The sink beside a row's keys, whose weights are relative to the score `base`: relative to the larger of
// the two, they are to be multiplied by `factor`, and the sink's weight is `weight`.
struct SinkShare {
    float factor = 1.0f, weight = 0.0f;
    float apart = -INFINITY;  // the sink's logit less the base's

    SinkShare() = default;
    __device__ __forceinline__ SinkShare(const float* sink, float base, float logit_scale) {
        if (sink == nullptr || *sink == -INFINITY) return;
        apart = fmaf(-base, logit_scale, *sink);
        factor = apart > 0.0f ? expf(-apart) : 1.0f;
        weight = apart > 0.0f ? 1.0f : expf(apart);
    }
};

}  // namespace evenkeel::cuda::fp32
