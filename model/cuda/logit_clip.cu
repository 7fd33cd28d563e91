// QK-Clip: maxima of heads and groups, and the scaling of the weights of heads that went too far.
//
// Floor: a launch each, while no head is clipped, as nearly always: then a block reads one number and ends. A head
// that is clipped costs 10 bytes an element (bf16 values): 128 x 4096 of them, 5.2 MB, 2.6 us on an A100.
#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "model/cuda/logit_clip.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kElementsABlock = 16 * kThreads;

// NaN is kept.
__device__ __forceinline__ float larger(float before, float now) {
    return !(now <= before) && before == before ? now : before;
}

__global__ void __launch_bounds__(kThreads)
    take_maximum_kernel(const std::int64_t count, const float* now, float* highest) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) highest[i] = larger(highest[i], now[i]);
}

// A thread a group.
__global__ void __launch_bounds__(kThreads) group_maximum_kernel(const std::int64_t count,
                                                                 const std::int64_t size,
                                                                 const float* max_logit,
                                                                 float* groups) {
    const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (group >= count) return;
    float highest = max_logit[group * size];
    for (std::int64_t i = 1; i < size; ++i) highest = larger(highest, max_logit[group * size + i]);
    groups[group] = highest;
}

__device__ __forceinline__ bool is_clipped(float highest, float threshold) {
    return highest > threshold && !isinf(highest);
}

__global__ void __launch_bounds__(kThreads) count_clipped_kernel(const std::int64_t count,
                                                                 const float threshold,
                                                                 const float* maximum,
                                                                 float* counts) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count && is_clipped(maximum[i], threshold)) counts[i] += 1.0f;
}

// Block (x, y) has elements x kElementsABlock .. of head y. value may be master.
template <typename T>
__global__ void __launch_bounds__(kThreads) clip_heads_kernel(const std::int64_t size,
                                                              const float threshold,
                                                              const float offset,
                                                              const float* maximum,
                                                              float* master,
                                                              T* value) {
    const float highest = maximum[blockIdx.y];
    if (!is_clipped(highest, threshold)) return;
    const float factor = sqrtf(threshold / highest);
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kElementsABlock;
    const std::int64_t head = static_cast<std::int64_t>(blockIdx.y) * size;
    for (int i = threadIdx.x; i < kElementsABlock && first + i < size; i += kThreads) {
        const std::int64_t at = head + first + i;
        const float scaled = __fadd_rn(__fmul_rn(__fadd_rn(master[at], offset), factor), -offset);
        master[at] = scaled;
        value[at] = static_cast<T>(scaled);
    }
}

}  // namespace

void take_maximum(const Tensor& highest, const Tensor& now) {
    const std::int64_t count = highest.numel();
    const dim3 grid = grid_size("take_maximum", (count + kThreads - 1) / kThreads);
    launch("take_maximum", take_maximum_kernel, {grid, kThreads}, count, now.data<float>(),
           highest.data<float>());
}

void group_maximum(const Tensor& max_logit, const Tensor& groups) {
    const std::int64_t count = groups.numel();
    const dim3 grid = grid_size("group_maximum", (count + kThreads - 1) / kThreads);
    launch("group_maximum", group_maximum_kernel, {grid, kThreads}, count,
           max_logit.numel() / count, max_logit.data<float>(), groups.data<float>());
}

void count_clipped(const Tensor& maximum, float threshold, const Tensor& counts) {
    const std::int64_t count = maximum.numel();
    const dim3 grid = grid_size("count_clipped", (count + kThreads - 1) / kThreads);
    launch("count_clipped", count_clipped_kernel, {grid, kThreads}, count, threshold,
           maximum.data<float>(), counts.data<float>());
}

void clip_heads(const Tensor& maximum,
                float threshold,
                float offset,
                const Tensor& master,
                const Tensor& value) {
    const std::int64_t heads = maximum.numel(), size = master.numel() / heads;
    const dim3 grid =
        grid_size("clip_heads", (size + kElementsABlock - 1) / kElementsABlock, heads);
    for_storage_type(value.dtype(), [&]<typename T>() {
        launch("clip_heads", clip_heads_kernel<T>, {grid, kThreads}, size, threshold, offset,
               maximum.data<float>(), master.data<float>(), reinterpret_cast<T*>(value.raw()));
    });
}

}  // namespace evenkeel::cuda
