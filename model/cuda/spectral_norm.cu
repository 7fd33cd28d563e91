// The iterations of spectral_norm.h over all matrices of a model in a few launches: the grid's second
// dimension counts matrices, blocks beyond a matrix's own size end at once.
//
// Bytes of an update: W read for W^T u, for W v and for the value, which is written: 12 + 2 bytes an element
// (bf16). 4 FLOPs an element in double, 1 in single precision.
//   L = 32 layers of C = 4096, F = 11008 (6.5 G elements): 91 GB; floor A100 (2.04 TB/s) 45 ms,
//   H200 (4.8 TB/s) 19 ms, over P tensor-parallel ranks.
// Bytes of a gradient's conversion: gradient and W read, the gradient read again and written: 16 an element.
//
// A warp reads 128 bytes of a row at a time. Every sum is taken in double in an order that the shapes alone
// decide: by threads, by shuffles, over warps in order.
#include <cuda_bf16.h>

#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "model/ops/spectral_norm_backends.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kScaleRows = 4;  // of a matrix, a block of scale_kernel

// In every thread the sum over all threads of the block. All of them call it together.
__device__ inline double block_sum(double value) {
    __shared__ double of_warp[kWarps];
    value = sum_over_warp(value);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
    __syncthreads();
    double sum = 0.0;
    for (int w = 0; w < kWarps; ++w) sum += of_warp[w];
    return sum;
}

__device__ inline double sum_of_squares(const double* vector, std::int64_t count) {
    double sum = 0.0;
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += vector[i] * vector[i];
    return block_sum(sum);
}

__global__ void __launch_bounds__(kThreads)
    advance_kernel(const SpectralMatrix* matrices, const double* left) {
    const SpectralMatrix& m = matrices[blockIdx.x];
    for (std::int64_t r = threadIdx.x; r < m.rows; r += kThreads) {
        m.start[r] = static_cast<float>(left[m.left + r]);
    }
}

// A block: 32 columns, a row in kWarps to each warp.
__global__ void __launch_bounds__(kThreads)
    transposed_kernel(const SpectralMatrix* matrices, double* right) {
    const SpectralMatrix& m = matrices[blockIdx.y];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kWarp;
    if (first >= m.columns) return;
    const std::int64_t column = first + lane;
    double sum = 0.0;
    if (column < m.columns && m.owned != 0) {
#pragma unroll 4
        for (std::int64_t r = warp; r < m.rows; r += kWarps) {
            sum += static_cast<double>(m.start[r]) *
                   static_cast<double>(m.weight[r * m.columns + column]);
        }
    }
    __shared__ double of_warp[kWarps][kWarp];
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || column >= m.columns) return;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += of_warp[w][lane];
    right[m.right + column] = sum;
}

// A warp: a row.
__global__ void __launch_bounds__(kThreads)
    product_kernel(const SpectralMatrix* matrices, const double* right, double* left) {
    const SpectralMatrix& m = matrices[blockIdx.y];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    if (row >= m.rows) return;
    const float* weight = m.weight + row * m.columns;
    const double* v = right + m.right;
    double sum = 0.0;
#pragma unroll 4
    for (std::int64_t c = lane; c < m.columns; c += kWarp) {
        sum += static_cast<double>(weight[c]) * v[c];
    }
    sum = sum_over_warp(sum);
    if (lane == 0) left[m.left + row] = sum;
}

// The squares of vectors that are cut over ranks, for the sum over those.
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const SpectralMatrix* matrices, bool of_right, double* vectors) {
    const SpectralMatrix& m = matrices[blockIdx.x];
    const bool cut = of_right ? m.rows_cut == 0 : m.rows_cut != 0;
    double sum = 0.0;
    if (cut && m.owned != 0) {
        sum =
            sum_of_squares(vectors + (of_right ? m.right : m.left), of_right ? m.columns : m.rows);
    }
    if (threadIdx.x == 0) vectors[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    normalize_kernel(const SpectralMatrix* matrices, bool of_right, double* vectors) {
    const SpectralMatrix& m = matrices[blockIdx.x];
    const bool cut = of_right ? m.rows_cut == 0 : m.rows_cut != 0;
    double* vector = vectors + (of_right ? m.right : m.left);
    const std::int64_t count = of_right ? m.columns : m.rows;
    const double length = sqrt(cut ? vectors[blockIdx.x] : sum_of_squares(vector, count));
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) vector[i] /= length;
    if (!of_right && threadIdx.x == 0) *m.sigma = static_cast<float>(length);
}

template <typename T>
__device__ inline T rounded(float value) {
    if constexpr (sizeof(T) == 4) {
        return value;
    } else {
        return __float2bfloat16_rn(value);
    }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) scale_kernel(const SpectralMatrix* matrices) {
    const SpectralMatrix& m = matrices[blockIdx.y];
    const float factor = __fdiv_rn(*m.gamma, *m.sigma);
    const std::int64_t count = m.rows * m.columns;
    const std::int64_t block = kScaleRows * m.columns;
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * block;
    const std::int64_t end = begin + block < count ? begin + block : count;
    T* value = static_cast<T*>(m.value);
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
        value[i] = rounded<T>(__fmul_rn(factor, m.weight[i]));
    }
}

__global__ void __launch_bounds__(kThreads)
    inner_kernel(const SpectralMatrix* matrices, double* partial) {
    const SpectralMatrix& m = matrices[blockIdx.y];
    const std::int64_t count = m.owned != 0 ? m.rows * m.columns : 0;
    double sum = 0.0;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
         i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
        sum += static_cast<double>(m.gradient[i]) * static_cast<double>(m.weight[i]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const double* partial, std::int64_t matrices, int parts, double* inner) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= matrices) return;
    double sum = 0.0;
    for (int p = 0; p < parts; ++p) sum += partial[i * parts + p];
    inner[i] = sum;
}

// A warp: a row.
__global__ void __launch_bounds__(kThreads) gradient_kernel(const SpectralMatrix* matrices,
                                                            const double* left,
                                                            const double* right,
                                                            const double* inner) {
    const SpectralMatrix& m = matrices[blockIdx.y];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    if (row >= m.rows) return;
    const double sigma = *m.sigma, dgamma = inner[blockIdx.y] / sigma;
    const double factor = static_cast<double>(*m.gamma) / sigma;
    const double along = dgamma * left[m.left + row];
    float* gradient = m.gradient + row * m.columns;
    const double* v = right + m.right;
    for (std::int64_t c = lane; c < m.columns; c += kWarp) {
        gradient[c] =
            static_cast<float>(factor * (static_cast<double>(gradient[c]) - along * v[c]));
    }
    if (row == 0 && lane == 0) *m.gamma_gradient = static_cast<float>(dgamma);
}

LaunchShape blocks(const char* op,
                   const SpectralWork& work,
                   std::int64_t extent,
                   std::int64_t step) {
    return {grid_size(op, (extent + step - 1) / step, work.size()), dim3(kThreads)};
}

}  // namespace

void start_iteration(const SpectralWork& work, bool advance) {
    constexpr const char* kOp = "start_iteration";
    const SpectralMatrix* matrices = work.device_matrices();
    const LaunchShape of_matrices = {grid_size(kOp, work.size()), dim3(kThreads)};
    double* right = work.right().data<double>();
    if (advance) launch(kOp, advance_kernel, of_matrices, matrices, work.left().data<double>());
    launch(kOp, transposed_kernel, blocks(kOp, work, work.most_columns(), kWarp), matrices, right);
    launch(kOp, squares_kernel, of_matrices, matrices, true, right);
}

void continue_iteration(const SpectralWork& work) {
    constexpr const char* kOp = "continue_iteration";
    const SpectralMatrix* matrices = work.device_matrices();
    const LaunchShape of_matrices = {grid_size(kOp, work.size()), dim3(kThreads)};
    double *left = work.left().data<double>(), *right = work.right().data<double>();
    launch(kOp, normalize_kernel, of_matrices, matrices, true, right);
    launch(kOp, product_kernel, blocks(kOp, work, work.most_rows(), kWarps), matrices, right, left);
    launch(kOp, squares_kernel, of_matrices, matrices, false, left);
}

void finish_iteration(const SpectralWork& work) {
    constexpr const char* kOp = "finish_iteration";
    launch(kOp, normalize_kernel, {grid_size(kOp, work.size()), dim3(kThreads)},
           work.device_matrices(), false, work.left().data<double>());
}

void refresh_values(const SpectralWork& work) {
    constexpr const char* kOp = "refresh_values";
    for_storage_type(work.type(), [&]<typename T>() {
        launch(kOp, scale_kernel<T>, blocks(kOp, work, work.most_rows(), kScaleRows),
               work.device_matrices());
    });
}

void inner_products(const SpectralWork& work) {
    constexpr const char* kOp = "inner_products";
    double* partial = work.partial().data<double>();
    launch(kOp, inner_kernel, {grid_size(kOp, work.parts(), work.size()), dim3(kThreads)},
           work.device_matrices(), partial);
    launch(kOp, add_parts_kernel,
           {grid_size(kOp, (work.size() + kThreads - 1) / kThreads), dim3(kThreads)}, partial,
           work.size(), static_cast<int>(work.parts()), work.inner().data<double>());
}

void convert_gradients(const SpectralWork& work) {
    constexpr const char* kOp = "convert_gradients";
    launch(kOp, gradient_kernel, blocks(kOp, work, work.most_rows(), kWarps),
           work.device_matrices(), work.left().data<double>(), work.right().data<double>(),
           work.inner().data<double>());
}

}  // namespace evenkeel::cuda
