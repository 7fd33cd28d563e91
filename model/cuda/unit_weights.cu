// unit_weights.h over all matrices of a model in three launches: the grid's second dimension counts matrices,
// blocks beyond a matrix's own size, or of the other kind of matrix, end at once. A row belongs to a warp; 32
// columns belong to a block, a row in kWarps to each warp.
//
// Bytes of an update: the weights read twice (the second time mostly from the caches) and written, the values
// written: 10 an element in bf16 at least. Of a gradient's conversion, where there is a gain: 12.
#include <cuda_bf16.h>

#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "model/ops/unit_weights_backends.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

__device__ inline float reciprocal_root(double squares) {
    return squares > 0.0 ? static_cast<float>(1.0 / sqrt(squares)) : 0.0f;
}

__device__ inline float gain_of(const UnitMatrix& m, std::int64_t row) {
    return m.gain != nullptr ? __fmul_rn(m.factor, m.gain[row]) : 1.0f;
}

template <typename T>
__device__ inline void put(const UnitMatrix& m, std::int64_t at, float scale, float gain) {
    const float weight = __fmul_rn(m.weight[at], scale);
    m.weight[at] = weight;
    if (m.value == nullptr) return;
    const float value = __fmul_rn(gain, weight);
    if constexpr (sizeof(T) == 4) {
        static_cast<T*>(m.value)[at] = value;
    } else {
        static_cast<T*>(m.value)[at] = __float2bfloat16_rn(value);
    }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    unit_rows_kernel(const UnitMatrix* matrices, bool normalize) {
    const UnitMatrix& m = matrices[blockIdx.y];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    if (m.unit_rows == 0 || row >= m.rows) return;
    const float* weight = m.weight + row * m.columns;
    double squares = 0.0;
    for (std::int64_t c = lane; normalize && c < m.columns; c += kWarp) {
        squares += static_cast<double>(weight[c]) * static_cast<double>(weight[c]);
    }
    const float scale = normalize ? reciprocal_root(sum_over_warp(squares)) : 1.0f;
    const float gain = gain_of(m, row);
    for (std::int64_t c = lane; c < m.columns; c += kWarp) {
        put<T>(m, row * m.columns + c, scale, gain);
    }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    unit_columns_kernel(const UnitMatrix* matrices, bool normalize) {
    const UnitMatrix& m = matrices[blockIdx.y];
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kWarp;
    if (m.unit_rows != 0 || first >= m.columns) return;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const std::int64_t column = first + lane;
    const bool exists = column < m.columns;
    double squares = 0.0;
    for (std::int64_t r = warp; exists && normalize && r < m.rows; r += kWarps) {
        const double weight = m.weight[r * m.columns + column];
        squares += weight * weight;
    }
    __shared__ double of_warp[kWarps][kWarp];
    of_warp[warp][lane] = squares;
    __syncthreads();
    squares = 0.0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) squares += of_warp[w][lane];
    const float scale = normalize ? reciprocal_root(squares) : 1.0f;
    for (std::int64_t r = warp; exists && r < m.rows; r += kWarps) {
        put<T>(m, r * m.columns + column, scale, gain_of(m, r));
    }
}

__global__ void __launch_bounds__(kThreads) gain_gradient_kernel(const UnitMatrix* matrices) {
    const UnitMatrix& m = matrices[blockIdx.y];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    if (m.gain == nullptr || row >= m.rows) return;
    const float* weight = m.weight + row * m.columns;
    float* gradient = m.gradient + row * m.columns;
    const float gain = gain_of(m, row);
    double inner = 0.0;
    for (std::int64_t c = lane; c < m.columns; c += kWarp) {
        const float g = gradient[c];
        inner += static_cast<double>(g) * static_cast<double>(weight[c]);
        gradient[c] = __fmul_rn(gain, g);
    }
    inner = sum_over_warp(inner);
    if (lane == 0) m.gain_gradient[row] = static_cast<float>(static_cast<double>(m.factor) * inner);
}

LaunchShape blocks(const char* op, const UnitWork& work, std::int64_t extent, std::int64_t step) {
    return {grid_size(op, (extent + step - 1) / step, work.size()), dim3(kThreads)};
}

}  // namespace

void refresh_weights(const UnitWork& work, bool normalize) {
    constexpr const char* kOp = "refresh_weights";
    for_storage_type(work.type(), [&]<typename T>() {
        launch(kOp, unit_rows_kernel<T>, blocks(kOp, work, work.most_rows(), kWarps),
               work.device_matrices(), normalize);
        launch(kOp, unit_columns_kernel<T>, blocks(kOp, work, work.most_columns(), kWarp),
               work.device_matrices(), normalize);
    });
}

void convert_gradients(const UnitWork& work) {
    constexpr const char* kOp = "convert_gradients";
    launch(kOp, gain_gradient_kernel, blocks(kOp, work, work.most_rows(), kWarps),
           work.device_matrices());
}

}  // namespace evenkeel::cuda
