#include "tests/gpu_emulator/end_to_end_kernels.h"

namespace gpu_emulator::end_to_end {
namespace {

constexpr int kThreads = 256;

__constant__ float coefficients[4] = {1, 2, 4, 8};
__device__ float bias = 0.5F;
__device__ int calls;

__global__ void __launch_bounds__(kThreads)
    add_kernel(float* out, const float* a, const float* b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) reduce_kernel(T* out, const T* in) {
    __shared__ T partial[kThreads / 32];
    T sum = in[blockIdx.x * kThreads + threadIdx.x];
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, mask);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < kThreads / 32 ? partial[threadIdx.x] : T{0};
        for (int mask = 4; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, mask);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }
}

__global__ void __launch_bounds__(1024) reverse(float* data) {
    extern __shared__ float buffer[];
    float* const block = data + static_cast<std::size_t>(blockIdx.x) * blockDim.x;
    buffer[threadIdx.x] = block[threadIdx.x];
    __syncthreads();
    block[threadIdx.x] = buffer[blockDim.x - 1 - threadIdx.x];
}

__global__ void __launch_bounds__(64) number_kernel(int* out, int width, int height) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    const int z = blockIdx.z;
    if (x >= width || y >= height) return;
    out[(y * width + x) * gridDim.z + z] = 10000 * y + 100 * x + z;
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) ++calls;
    if (i < n) out[i] = coefficients[i % 4] * in[i] + bias;
}

__global__ void __launch_bounds__(kThreads) functions_kernel(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = in[i];
    out += i;
    out[0 * n] = expf(x);
    out[1 * n] = logf(fabsf(x));
    out[2 * n] = sinf(x);
    out[3 * n] = cosf(x);
    out[4 * n] = sqrtf(fabsf(x));
    out[5 * n] = rsqrtf(fabsf(x));
    out[6 * n] = exp2f(x);
    out[7 * n] = 1.0F / x;
    out[8 * n] = fmaxf(x, 0.25F);
    out[9 * n] = static_cast<float>(sqrt(static_cast<double>(x) * x) / 3);
}

__global__ void __launch_bounds__(32)
    parameters_kernel(Parameters parameters, unsigned char byte, long long wide) {
    if (threadIdx.x != 0) return;
    parameters.out[0] = parameters.small;
    parameters.out[1] = static_cast<float>(parameters.number);
    for (int i = 0; i < 3; ++i) parameters.out[2 + i] = parameters.pair[i];
    parameters.out[5] = byte;
    parameters.out[6] = static_cast<float>(wide >> 40);
}

__global__ void __launch_bounds__(64) bounded_kernel() {}

__global__ void __launch_bounds__(32) overrun_kernel(float* data, int n) {
    if (threadIdx.x == 0) data[n] = 1;
}

int blocks_for(int n) { return (n + kThreads - 1) / kThreads; }

}  // namespace

const void* const reverse_kernel = reinterpret_cast<const void*>(&reverse);

void add(float* out, const float* a, const float* b, int n, cudaStream_t stream) {
    add_kernel<<<blocks_for(n), kThreads, 0, stream>>>(out, a, b, n);
}

void reduce(float* out, const float* in, int blocks) {
    reduce_kernel<<<blocks, kThreads>>>(out, in);
}

void reduce(double* out, const double* in, int blocks) {
    reduce_kernel<<<blocks, kThreads>>>(out, in);
}

void reverse_blocks(float* data, int blocks, int threads, std::size_t shared_bytes) {
    reverse<<<blocks, threads, shared_bytes>>>(data);
}

void number_cells(int* out, int width, int height, int depth) {
    const dim3 block(16, 4);
    const dim3 grid((width + 15) / 16, (height + 3) / 4, depth);
    number_kernel<<<grid, block>>>(out, width, height);
}

void scale_by_constants(float* out, const float* in, int n) {
    scale_kernel<<<blocks_for(n), kThreads>>>(out, in, n);
}

cudaError_t set_coefficients(const float* four) {
    return cudaMemcpyToSymbol(coefficients, four, sizeof coefficients);
}

cudaError_t set_bias(float value) { return cudaMemcpyToSymbol(bias, &value, sizeof value); }

cudaError_t get_calls(int* value) { return cudaMemcpyFromSymbol(value, calls, sizeof *value); }

void functions(float* out, const float* in, int n) {
    functions_kernel<<<blocks_for(n), kThreads>>>(out, in, n);
}

void take_parameters(const Parameters& parameters, unsigned char byte, long long wide) {
    parameters_kernel<<<1, 32>>>(parameters, byte, wide);
}

void bounded(int threads) { bounded_kernel<<<1, threads>>>(); }

void overrun(float* data, int n) { overrun_kernel<<<1, 32>>>(data, n); }

}  // namespace gpu_emulator::end_to_end
