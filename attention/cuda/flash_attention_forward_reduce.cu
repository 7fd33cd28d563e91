// Sums up the telemetry of flash attention's forward kernel.
#include "attention/cuda/flash_attention_forward.h"
#include "attention/cuda/mma.cuh"
#include "framework/cuda.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 128;

// One block a head. Reads 12 bytes a partial result: nothing, beside the attention before it.
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(const ForwardPartials partials, int count, float* max_logit, float* entropy) {
    __shared__ float max_of[kThreads], sum_of[kThreads], rows_of[kThreads];
    const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
    const std::int64_t first = static_cast<std::int64_t>(head) * count;
    float highest = -INFINITY, sum = 0.0f, rows = 0.0f;
    for (int i = thread; i < count; i += kThreads) {
        highest = max_or_nan(highest, partials.max_logit[first + i]);
        sum += partials.entropy[first + i];
        rows += static_cast<float>(partials.rows[first + i]);
    }
    max_of[thread] = highest, sum_of[thread] = sum, rows_of[thread] = rows;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) {
            max_of[thread] = max_or_nan(max_of[thread], max_of[thread + half]);
            sum_of[thread] += sum_of[thread + half];
            rows_of[thread] += rows_of[thread + half];
        }
    }
    if (thread == 0) {
        max_logit[head] = max_of[0];
        entropy[head] = rows_of[0] > 0.0f ? sum_of[0] / rows_of[0] : 0.0f;
    }
}

}  // namespace

void reduce_forward_partials(const ForwardPartials& partials,
                             std::int64_t heads,
                             std::int64_t count,
                             const AttentionStats& stats) {
    const char* op = "flash_attention_forward";
    launch(op, reduce_kernel, {grid_size(op, heads), dim3(kThreads)}, partials,
           static_cast<int>(count), stats.max_logit.data<float>(), stats.entropy.data<float>());
}

}  // namespace evenkeel::cuda
