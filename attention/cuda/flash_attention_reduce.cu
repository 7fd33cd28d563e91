// Sums up what flash attention's kernels leave of every tile: telemetry of the forward pass, and the
// sink's gradient of the backward pass.
#include "attention/cuda/flash_attention_backward.h"
#include "attention/cuda/flash_attention_forward.h"
#include "attention/cuda/mma.cuh"
#include "framework/cuda.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 128;

// All threads of a block call it; the first one gets the total, in an order that kThreads fixes.
template <typename Number, typename Combine>
__device__ Number total_of_block(Number mine, const Combine& combine) {
    __shared__ Number numbers[kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    __syncthreads();  // a call before this one has read its own
    numbers[thread] = mine;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) numbers[thread] = combine(numbers[thread], numbers[thread + half]);
    }
    return numbers[thread];
}

struct ForwardStats {
    float *max_logit, *max_logit_uncapped, *entropy, *entropy_share, *saturation;  // [H]
};

// One block a head. Reads 24 bytes a partial result: nothing, beside the attention before it.
// Tanh never decreases, so the largest logit behind softcap is that of the largest score.
__global__ void __launch_bounds__(kThreads) reduce_forward_kernel(const ForwardPartials partials,
                                                                  int count,
                                                                  float scale,
                                                                  float cap_scale,
                                                                  float softcap,
                                                                  const ForwardStats stats) {
    const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
    const std::int64_t first = static_cast<std::int64_t>(head) * count;
    float highest = -INFINITY, entropy = 0.0f, share = 0.0f;
    float rows = 0.0f, rows_of_two = 0.0f, saturated = 0.0f;
    for (std::int64_t i = first + thread; i < first + count; i += kThreads) {
        highest = max_or_nan(highest, partials.max_score[i]);
        entropy += partials.entropy[i];
        share += partials.entropy_share[i];
        rows += static_cast<float>(partials.rows[i]);
        rows_of_two += static_cast<float>(partials.rows_of_two[i]);
        saturated += static_cast<float>(partials.saturated[i]);
    }
    const auto sum = [](float x) {
        return total_of_block(x, [](float a, float b) { return a + b; });
    };
    highest = total_of_block(highest, [](float a, float b) { return max_or_nan(a, b); });
    entropy = sum(entropy), rows = sum(rows);
    share = sum(share), saturated = sum(saturated), rows_of_two = sum(rows_of_two);
    if (thread > 0) return;
    const auto mean = [](float total, float of) { return of > 0.0f ? total / of : 0.0f; };
    const float uncapped = highest * scale;
    stats.max_logit_uncapped[head] = uncapped;
    stats.max_logit[head] = cap_scale != 0.0f && highest != -INFINITY
                                ? softcap * tanh_approx(highest * cap_scale)
                                : uncapped;
    stats.entropy[head] = mean(entropy, rows);
    stats.entropy_share[head] = mean(share, rows_of_two);
    stats.saturation[head] = mean(saturated, rows_of_two);
}

// One block a head, as above.
__global__ void __launch_bounds__(kThreads)
    reduce_sink_kernel(const float* shares, std::int64_t count, float* dsink) {
    const int head = static_cast<int>(blockIdx.x);
    const float* of_head = shares + head * count;
    float sum = 0.0f;
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += of_head[i];
    sum = total_of_block(sum, [](float a, float b) { return a + b; });
    if (threadIdx.x == 0) dsink[head] -= sum;
}

}  // namespace

void reduce_forward_partials(const FlashProblem& problem,
                             double softcap,
                             const ForwardPartials& partials,
                             std::int64_t count,
                             const AttentionStats& stats) {
    const char* op = "flash_attention_forward";
    const ForwardStats to{stats.max_logit.data<float>(), stats.max_logit_uncapped.data<float>(),
                          stats.entropy.data<float>(), stats.entropy_share.data<float>(),
                          stats.saturation.data<float>()};
    launch(op, reduce_forward_kernel, {grid_size(op, problem.heads), dim3(kThreads)}, partials,
           static_cast<int>(count), problem.scale, problem.cap_scale, static_cast<float>(softcap),
           to);
}

void reduce_sink_gradient(const float* shares,
                          std::int64_t heads,
                          std::int64_t count,
                          float* dsink) {
    const char* op = "flash_attention_backward";
    launch(op, reduce_sink_kernel, {grid_size(op, heads), dim3(kThreads)}, shares, count, dsink);
}

}  // namespace evenkeel::cuda
