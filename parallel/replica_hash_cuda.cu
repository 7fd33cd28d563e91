// The sum over a tensor's elements of a 64-bit hash of each. Sums of integers have no order, so every block
// adds its own with one atomic.
//
// Floor: each element's bytes read once, over the GPU's bandwidth. Two 64-bit multiplications an element.
#include "framework/cuda.h"
#include "parallel/replica_hash.h"

namespace evenkeel::cuda {
namespace {

constexpr const char* kOp = "replica_drift";
constexpr int kThreads = 256, kWarp = 32;
constexpr int kPerThread = 16;
constexpr std::int64_t kMostBlocks = 4096;

// As replica_check.cpp's.
__device__ inline std::uint64_t hash_element(std::uint64_t bits, std::uint64_t index) {
    std::uint64_t z = bits + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    return z ^ (z >> 27);
}

template <typename Word>
__global__ void __launch_bounds__(kThreads) hash_kernel(const Word* words,
                                                        std::int64_t count,
                                                        std::int64_t first,
                                                        unsigned long long* total) {
    __shared__ unsigned long long warp_sums[kThreads / kWarp];
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
    unsigned long long sum = 0;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
         i += step) {
        sum += hash_element(words[i], static_cast<std::uint64_t>(first + i));
    }
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, distance);
    }
    if (threadIdx.x % kWarp == 0) warp_sums[threadIdx.x / kWarp] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < kThreads / kWarp; ++warp) sum += warp_sums[warp];
    atomicAdd(total, sum);
}

template <typename Word>
void add(const Tensor& tensor, std::int64_t first, std::uint64_t* sum) {
    const std::int64_t count = tensor.numel(), share = kThreads * kPerThread;
    const std::int64_t blocks = (count + share - 1) / share;
    launch(kOp, hash_kernel<Word>,
           {grid_size(kOp, blocks < kMostBlocks ? blocks : kMostBlocks), dim3(kThreads)},
           reinterpret_cast<const Word*>(tensor.raw()), count, first,
           reinterpret_cast<unsigned long long*>(sum));
}

}  // namespace

void add_hash(const Tensor& tensor, std::int64_t first, std::uint64_t* sum) {
    if (size_of(tensor.dtype()) == 2) {
        add<std::uint16_t>(tensor, first, sum);
    } else {
        add<std::uint32_t>(tensor, first, sum);
    }
}

}  // namespace evenkeel::cuda
