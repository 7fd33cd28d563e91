#include "framework/cuda.h"
#include "tests/framework/launch_kernels.h"

namespace evenkeel::testing {
namespace {

__global__ void __launch_bounds__(256) number_threads(std::int32_t* out) {
    extern __shared__ std::int32_t numbers[];
    const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    numbers[threadIdx.x] = index;
    __syncthreads();
    out[index] = numbers[threadIdx.x];
}

// Shared memory of its own beside the launch's, whose first and last number end up in out.
__global__ void __launch_bounds__(32) use_both_memories(std::int32_t* out, int numbers) {
    extern __shared__ std::int32_t given[];
    __shared__ std::int32_t own[32];
    const int thread = static_cast<int>(threadIdx.x);
    own[thread] = thread;
    for (int i = thread; i < numbers; i += 32) given[i] = i;
    __syncthreads();
    out[thread] = own[31 - thread] + given[0] + given[numbers - 1];
}

__global__ void __launch_bounds__(32) do_nothing() {}

}  // namespace

void launch_number_threads(std::int64_t blocks,
                           int threads,
                           std::size_t shared_bytes,
                           std::int32_t* out) {
    const cuda::LaunchShape shape{cuda::grid_size("number", blocks), dim3(threads), shared_bytes};
    cuda::launch("number", number_threads, shape, out);
}

void launch_both_memories(std::size_t shared_bytes, std::int32_t* out) {
    const cuda::LaunchShape shape{dim3(1), dim3(32), shared_bytes};
    cuda::launch("both", use_both_memories, shape, out,
                 static_cast<int>(shared_bytes / sizeof(std::int32_t)));
}

void launch_grid(std::int64_t x, std::int64_t y, std::int64_t z) {
    cuda::launch("nothing", do_nothing, {cuda::grid_size("nothing", x, y, z), dim3(32)});
}

bool error_is_pending() { return cudaGetLastError() != cudaSuccess; }

}  // namespace evenkeel::testing
