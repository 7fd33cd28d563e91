// The sum of squares of all gradients: one block a chunk adds in double, then one block adds the chunks'
// sums. Both in an order that depends on the sizes alone, so the bits repeat. 16-byte reads but for up to
// three elements at each end of a chunk. Static shared memory: 8 bytes a warp.
//
// Floor: 4 bytes read an element, over the GPU's bandwidth. Two FLOPs an element, in double.
#include "framework/cuda.h"
#include "framework/optimizer/gradient_norm_cuda.h"

namespace evenkeel::cuda {
namespace {

constexpr const char* kOp = "chunk_sums_of_squares";
constexpr int kThreads = 256, kWarp = 32;
constexpr int kTotalThreads = 1024;
constexpr int kVector = 4;  // elements

__device__ inline double add_square(double sum, float value) {
    const double wide = value;  // its square is exact
    return __fma_rn(wide, wide, sum);
}

// In the first thread the sum over all threads of the block.
template <int kCount>
__device__ inline double block_sum(double value) {
    __shared__ double warp_sums[kCount / kWarp];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
        value = __dadd_rn(value, __shfl_down_sync(0xffffffffu, value, step));
    }
    if (lane == 0) warp_sums[warp] = value;
    __syncthreads();
    if (threadIdx.x != 0) return 0.0;
    double sum = warp_sums[0];
    for (int i = 1; i < kCount / kWarp; ++i) sum = __dadd_rn(sum, warp_sums[i]);
    return sum;
}

__global__ void __launch_bounds__(kThreads)
    sum_of_squares_kernel(const ParameterChunk* chunks, const float* values, double* sums) {
    const ParameterChunk chunk = chunks[blockIdx.x];
    double sum = 0.0;
    if ((chunk.flags & ParameterChunk::kOwned) != 0) {
        const int thread = static_cast<int>(threadIdx.x);
        const int before_vectors = static_cast<int>(-chunk.begin & (kVector - 1));
        const int head = before_vectors < chunk.count ? before_vectors : chunk.count;
        const int vectors = (chunk.count - head) / kVector;
        const int tail = chunk.count - head - vectors * kVector;
        const float* const first_vector = values + chunk.begin + head;
        for (int i = thread; i < vectors; i += kThreads) {
            const float4 four = *reinterpret_cast<const float4*>(first_vector + i * kVector);
            sum = add_square(sum, four.x);
            sum = add_square(sum, four.y);
            sum = add_square(sum, four.z);
            sum = add_square(sum, four.w);
        }
        if (thread < head) {
            sum = add_square(sum, values[chunk.begin + thread]);
        } else if (thread >= kVector && thread - kVector < tail) {
            sum = add_square(sum, first_vector[vectors * kVector + thread - kVector]);
        }
    }
    sum = block_sum<kThreads>(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kTotalThreads)
    add_sums_kernel(const double* sums, std::int64_t count, double* total) {
    double sum = 0.0;
    for (std::int64_t i = threadIdx.x; i < count; i += kTotalThreads) sum = __dadd_rn(sum, sums[i]);
    sum = block_sum<kTotalThreads>(sum);
    if (threadIdx.x == 0) *total = __dadd_rn(*total, sum);
}

}  // namespace

void chunk_sums_of_squares(const ParameterBuckets& buckets, const Tensor& sums) {
    for (const ParameterBucket& bucket : buckets.list()) {
        const auto chunks = static_cast<std::int64_t>(bucket.chunks.size());
        if (chunks == 0) continue;
        EVENKEEL_CHECK_CODE(reinterpret_cast<std::uintptr_t>(bucket.part_grad.raw()) % 16 == 0,
                            ErrorCode::kInternal, kOp, "a bucket is not aligned to 16 bytes");
        const LaunchShape shape{grid_size(kOp, chunks), dim3(kThreads)};
        launch(kOp, sum_of_squares_kernel, shape,
               reinterpret_cast<const ParameterChunk*>(bucket.device_chunks.raw()),
               bucket.part_grad.data<float>(), sums.data<double>() + bucket.first_chunk);
    }
}

void add_in_order(const Tensor& sums, const Tensor& total) {
    launch("add_in_order", add_sums_kernel, {dim3(1), dim3(kTotalThreads)}, sums.data<double>(),
           sums.numel(), total.data<double>());
}

}  // namespace evenkeel::cuda
