// The forward kernel of flash attention in fp32 (flash_attention_fp32.cuh).
#include "attention/cuda/flash_attention_fp32.cuh"
#include "attention/cuda/flash_attention_fp32.h"
#include "attention/cuda/flash_attention_statistics.cuh"
#include "framework/cuda.h"

namespace evenkeel::cuda {
namespace fp32 {
namespace {

// What is known of a warp's own rows; sums over keys are this lane's.
struct ForwardRows {
    float base[kOwn];      // the largest score, to which the sums are relative; -inf: none yet
    float highest[kOwn];   // the largest q k; NaN if there was one
    float sum[kOwn];       // of p = e^(logit - that of the base)
    float weighted[kOwn];  // of p ln p

    __device__ __forceinline__ ForwardRows() {
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
            base[r] = highest[r] = -INFINITY;
            sum[r] = weighted[r] = 0.0f;
        }
    }

    // products become p. The factor for sums that were made before.
    __device__ __forceinline__ float add(
        int r, float& product, bool visible, float cap_scale, float logit_scale) {
        const float seen = visible ? product : -INFINITY;
        const float most = over_warp(seen, [](float a, float b) { return max_or_nan(a, b); });
        highest[r] = max_or_nan(highest[r], most);
        const float score = visible ? score_of(product, cap_scale) : -INFINITY;
        const float before = base[r];
        base[r] = fmaxf(before, max_of_warp(score));
        const float safe = finite_base(base[r]);
        const float down = max_or_nan((before - safe) * logit_scale, kFarBelow);
        const float factor = expf(down);
        weighted[r] = factor * fmaf(down, sum[r], weighted[r]);
        sum[r] *= factor;
        // Far below, so that p ln p is 0 where p is.
        const float apart = max_or_nan((score - safe) * logit_scale, kFarBelow);
        product = visible ? expf(apart) : 0.0f;
        sum[r] += product;
        weighted[r] = fmaf(product, visible ? apart : 0.0f, weighted[r]);
        return factor;
    }
};

// Of one row. total, weighted: with the sink, relative to the largest logit, the sink's included.
__device__ __forceinline__ RowStatistics
statistics_of(const FlashProblem& p, int row, float highest, float total, float weighted) {
    const Interval seen = visible_keys(p.mask, row);
    if (seen.begin >= seen.end || total == 0.0f) return {};
    // Rounding can make the entropy of a one-hot row negative; NaN is kept.
    const float entropy = logf(total) - weighted / total;
    RowStatistics of_row{highest, entropy < 0.0f ? 0.0f : entropy, 1};
    const int keys = seen.end - seen.begin + (p.sink ? 1 : 0);
    if (keys < 2) return of_row;
    of_row.entropy_share = of_row.entropy / logf(static_cast<float>(keys));
    of_row.saturated = 1.0f >= kSaturated * total ? 1 : 0;
    of_row.rows_of_two = 1;
    return of_row;
}

template <int kMost>
__global__ void __launch_bounds__(kThreads, kBlocks<kMost>)
    flash_fp32_forward(const FlashProblem p,
                       const ForwardPartials partials,
                       const float logit_scale,
                       const Width width) {
    extern __shared__ __align__(16) float shared[];
    float* const q_tile = shared;
    float* const k_tile = q_tile + width.own_tile();
    float* const v_tile = k_tile + width.walk_tile();
    const int lane = lane_of_thread();
    const int tile = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
    const int b = static_cast<int>(blockIdx.z), kv_head = head / p.group;
    const int first = tile * kRows, last = min(first + kRows, p.queries) - 1;
    const int own = first + warp_index() * kOwn;  // the warp's first row
    load_own(q_tile, width, p.q, b, head, first, p.queries);

    Interval seen[kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
        seen[r] = own + r < p.queries ? visible_keys(p.mask, own + r) : Interval{0, 0};
    }
    ForwardRows rows;
    Sums<kMost> out;
    const int end = visible_keys(p.mask, last).end;
    for (int key = visible_keys(p.mask, first).begin; key < end; key += kWalk) {
        __syncthreads();  // the keys before have been read
        load_walk(k_tile, width, p.k, b, kv_head, key, p.keys);
        load_walk(v_tile, width, p.v, b, kv_head, key, p.keys);
        __syncthreads();
        float weights[kOwn];
        multiply(q_tile, k_tile, width, weights);
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
            const float factor =
                rows.add(r, weights[r], inside(seen[r], key + lane), p.cap_scale, logit_scale);
#pragma unroll
            for (float& x : out.of[r]) x *= factor;
        }
        out.accumulate(weights, v_tile, width);
    }

    float inverse[kOwn];
    RowStatistics mine;
    float* const lse = p.lse + (static_cast<std::int64_t>(b) * p.heads + head) * p.queries;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
        const SinkShare sink(p.sink ? p.sink + head : nullptr, rows.base[r], logit_scale);
        const bool is_sink = sink.apart > 0.0f;  // the largest logit
        float total = sum_of_warp(rows.sum[r]), weighted = sum_of_warp(rows.weighted[r]);
        const float down = is_sink ? fmaxf(-sink.apart, kFarBelow) : 0.0f;
        const float of_sink = is_sink ? 0.0f : fmaxf(sink.apart, kFarBelow);
        weighted = fmaf(sink.weight, of_sink, sink.factor * fmaf(down, total, weighted));
        total = fmaf(sink.factor, total, sink.weight);
        inverse[r] = total == 0.0f ? 0.0f : sink.factor / total;
        if (own + r >= p.queries) continue;
        if (lane == 0) {
            lse[own + r] = total == 0.0f ? -INFINITY
                           : is_sink     ? p.sink[head] + logf(total)
                                         : fmaf(rows.base[r], logit_scale, logf(total));
        }
        if (partials.max_score) {
            mine.add(statistics_of(p, own + r, rows.highest[r], total, weighted));
        }
    }
    out.store(p.out, width, b, head, own, p.queries, inverse);

    if (!partials.max_score) return;
    auto* const of_warp = reinterpret_cast<RowStatistics*>(k_tile);
    __syncthreads();  // no warp needs the keys any more
    if (lane == 0) of_warp[warp_index()] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < kWarps; ++w) mine.add(of_warp[w]);
    const std::int64_t index = (static_cast<std::int64_t>(head) * p.batch + b) * gridDim.x + tile;
    partials.max_score[index] = mine.max_score;
    partials.entropy[index] = mine.entropy;
    partials.rows[index] = mine.rows;
    partials.entropy_share[index] = mine.entropy_share;
    partials.saturated[index] = mine.saturated;
    partials.rows_of_two[index] = mine.rows_of_two;
}

}  // namespace
}  // namespace fp32

void flash_forward_fp32(const FlashProblem& problem,
                        const ForwardPartials& partials,
                        std::int64_t head_dim,
                        float logit_scale) {
    constexpr const char* kOp = "flash_attention_forward";
    const int tiles = (problem.queries + fp32::kRows - 1) / fp32::kRows;
    const fp32::Width width{static_cast<int>(head_dim)};
    const auto shared = static_cast<std::size_t>(fp32::forward_shared_bytes(width));
    const auto kernel =
        head_dim <= 128 ? fp32::flash_fp32_forward<128> : fp32::flash_fp32_forward<256>;
    launch(kOp, kernel,
           {grid_size(kOp, tiles, problem.heads, problem.batch), dim3(fp32::kThreads), shared},
           problem, partials, logit_scale, width);
}

}  // namespace evenkeel::cuda
