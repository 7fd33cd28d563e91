// The backward kernels of flash attention in fp32 (flash_attention_fp32.cuh): queries, which also writes
// what keys needs of a row, then keys.
#include "attention/cuda/flash_attention_fp32.cuh"
#include "attention/cuda/flash_attention_fp32.h"
#include "framework/cuda.h"

namespace evenkeel::cuda {
namespace fp32 {
namespace {

// Of a row: p = e^((score - shift) logit_scale) weight, ds = p (dp - delta).
struct RowData {
    float shift = INFINITY, weight = 0.0f, delta = 0.0f;

    __device__ __forceinline__ float probability(float score, float logit_scale) const {
        return expf((score - shift) * logit_scale) * weight;
    }
    // Of q k, over the softmax scale.
    __device__ __forceinline__ float gradient(float p, float dp, float slope) const {
        return p * (dp - delta) * slope;
    }
};

// What a lane knows of a row after some of the keys: the largest score, and relative to it the sums of
// p and p dp.
struct KeySums {
    float base = -INFINITY, sum = 0.0f, product = 0.0f;

    __device__ __forceinline__ void move(float to, float logit_scale) {
        const float factor = expf((base - finite_base(to)) * logit_scale);
        base = to;
        sum *= factor;
        product *= factor;
    }
    __device__ __forceinline__ void add(float score, float dp, float logit_scale) {
        if (score > base) move(score, logit_scale);
        const float p = expf((score - finite_base(base)) * logit_scale);
        sum += p;
        product = fmaf(p, dp, product);
    }
};

template <int kMost>
__global__ void __launch_bounds__(kThreads, kBlocks<kMost>)
    flash_fp32_backward_queries(const __grid_constant__ FlashBackwardProblem problem,
                                const float logit_scale,
                                const Width width) {
    const FlashProblem& p = problem.forward;
    extern __shared__ __align__(16) float shared[];
    float* const q_tile = shared;
    float* const dout_tile = q_tile + width.own_tile();
    float* const k_tile = dout_tile + width.own_tile();
    float* const v_tile = k_tile + width.walk_tile();
    const int lane = lane_of_thread(), warp = warp_index();
    const int tile = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
    const int b = static_cast<int>(blockIdx.z), kv_head = head / p.group;
    // Blocks go on to the last padded row.
    const int first = tile * kRows, own = first + warp * kOwn;
    load_own(q_tile, width, p.q, b, head, first, p.queries);
    load_own(dout_tile, width, problem.dout, b, head, first, p.queries);

    Interval seen[kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
        seen[r] = own + r < p.queries ? visible_keys(p.mask, own + r) : Interval{0, 0};
    }
    const bool exists = first < p.queries;
    const int begin = exists ? visible_keys(p.mask, first).begin : 0;
    const int end = exists ? visible_keys(p.mask, min(first + kRows, p.queries) - 1).end : 0;
    float s[kOwn], dp[kOwn];
    const auto load_and_multiply = [&](int key) {
        __syncthreads();  // the keys before have been read
        load_walk(k_tile, width, p.k, b, kv_head, key, p.keys);
        load_walk(v_tile, width, p.v, b, kv_head, key, p.keys);
        __syncthreads();
        multiply(q_tile, k_tile, width, s);
        multiply(dout_tile, v_tile, width, dp);
    };

    KeySums found[kOwn];
    for (int key = begin; key < end; key += kWalk) {
        load_and_multiply(key);
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
            if (inside(seen[r], key + lane))
                found[r].add(score_of(s[r], p.cap_scale), dp[r], logit_scale);
        }
    }
    RowData data[kOwn];
    float sink_share = 0.0f;
    float* const rows =
        problem.rows + (static_cast<std::int64_t>(b) * p.heads + head) * 3 * problem.padded_queries;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
        found[r].move(max_of_warp(found[r].base), logit_scale);
        const float sum = sum_of_warp(found[r].sum), product = sum_of_warp(found[r].product);
        if (sum != 0.0f) {  // some key is in sight
            const SinkShare sink(p.sink ? p.sink + head : nullptr, found[r].base, logit_scale);
            const float total = fmaf(sink.factor, sum, sink.weight);
            data[r] = {found[r].base, sink.factor / total, sink.factor * product / total};
            sink_share += sink.weight / total * data[r].delta;
        }
        if (lane == 0) {
            rows[own + r] = data[r].shift;
            rows[problem.padded_queries + own + r] = data[r].weight;
            rows[2 * problem.padded_queries + own + r] = data[r].delta;
        }
    }

    Sums<kMost> dq;
    for (int key = begin; key < end; key += kWalk) {
        load_and_multiply(key);
        float ds[kOwn];
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
            const float probability = data[r].probability(score_of(s[r], p.cap_scale), logit_scale);
            const float of_key = data[r].gradient(probability, dp[r], slope_of(s[r], p.cap_scale));
            ds[r] = inside(seen[r], key + lane) ? of_key : 0.0f;
        }
        dq.accumulate(ds, k_tile, width);
    }
    float factors[kOwn];
#pragma unroll
    for (float& x : factors) x = p.scale;
    dq.store(problem.dq, width, b, head, own, p.queries, factors);

    if (!problem.sink_shares) return;
    __shared__ float of_warp[kWarps];
    if (lane == 0) of_warp[warp] = sink_share;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < kWarps; ++w) sink_share += of_warp[w];
    problem.sink_shares[(static_cast<std::int64_t>(head) * p.batch + b) * gridDim.x + tile] =
        sink_share;
}

template <int kMost>
__global__ void __launch_bounds__(kThreads, kBlocks<kMost>)
    flash_fp32_backward_keys(const __grid_constant__ FlashBackwardProblem problem,
                             const float logit_scale,
                             const Width width) {
    const FlashProblem& p = problem.forward;
    extern __shared__ __align__(16) float shared[];
    float* const k_tile = shared;
    float* const v_tile = k_tile + width.own_tile();
    float* const q_tile = v_tile + width.own_tile();
    float* const dout_tile = q_tile + width.walk_tile();
    const int lane = lane_of_thread();
    const int first = static_cast<int>(blockIdx.x) * kRows, own = first + warp_index() * kOwn;
    const int kv_head = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
    load_own(k_tile, width, p.k, b, kv_head, first, p.keys);
    load_own(v_tile, width, p.v, b, kv_head, first, p.keys);

    Interval seeing[kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
        seeing[r] = own + r < p.keys ? seeing_queries(p.mask, own + r) : Interval{0, 0};
    }
    const int begin = seeing_queries(p.mask, first).begin;
    const int end = seeing_queries(p.mask, min(first + kRows, p.keys) - 1).end;
    Sums<kMost> dk, dv;
    for (int head = kv_head * p.group; head < (kv_head + 1) * p.group; ++head) {
        const float* const rows = problem.rows + (static_cast<std::int64_t>(b) * p.heads + head) *
                                                     3 * problem.padded_queries;
        for (int row = begin; row < end; row += kWalk) {
            __syncthreads();  // the rows before have been read
            load_walk(q_tile, width, p.q, b, head, row, p.queries);
            load_walk(dout_tile, width, problem.dout, b, head, row, p.queries);
            __syncthreads();
            float s[kOwn], dp[kOwn];
            multiply(k_tile, q_tile, width, s);
            multiply(v_tile, dout_tile, width, dp);
            RowData data;
            if (row + lane < p.queries) {
                const float* const at = rows + row + lane;
                data = {at[0], at[problem.padded_queries], at[2 * problem.padded_queries]};
            }
#pragma unroll
            for (int r = 0; r < kOwn; ++r) {
                const float probability =
                    data.probability(score_of(s[r], p.cap_scale), logit_scale);
                const float of_key = data.gradient(probability, dp[r], slope_of(s[r], p.cap_scale));
                const bool sees = inside(seeing[r], row + lane);
                s[r] = sees ? of_key : 0.0f;
                dp[r] = sees ? probability : 0.0f;
            }
            dk.accumulate(s, q_tile, width);
            dv.accumulate(dp, dout_tile, width);
        }
    }
    float scale[kOwn], one[kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) scale[r] = p.scale, one[r] = 1.0f;
    dk.store(problem.dk, width, b, kv_head, own, p.keys, scale);
    dv.store(problem.dv, width, b, kv_head, own, p.keys, one);
}

}  // namespace
}  // namespace fp32

void flash_backward_fp32(const FlashBackwardProblem& problem,
                         std::int64_t head_dim,
                         float logit_scale) {
    constexpr const char* kOp = "flash_attention_backward";
    const FlashProblem& p = problem.forward;
    const int row_tiles = problem.padded_queries / fp32::kRows;
    const int key_tiles = (p.keys + fp32::kRows - 1) / fp32::kRows;
    const fp32::Width width{static_cast<int>(head_dim)};
    const auto shared = static_cast<std::size_t>(fp32::backward_shared_bytes(width));
    const bool narrow = head_dim <= 128;
    launch(kOp,
           narrow ? fp32::flash_fp32_backward_queries<128> : fp32::flash_fp32_backward_queries<256>,
           {grid_size(kOp, row_tiles, p.heads, p.batch), dim3(fp32::kThreads), shared}, problem,
           logit_scale, width);
    launch(kOp, narrow ? fp32::flash_fp32_backward_keys<128> : fp32::flash_fp32_backward_keys<256>,
           {grid_size(kOp, key_tiles, p.kv_heads, p.batch), dim3(fp32::kThreads), shared}, problem,
           logit_scale, width);
}

}  // namespace evenkeel::cuda
