// normalized_update.h: a warp a row, so that every sum is one of shuffles. What a row is read again for comes
// from the caches (a row of C = 4096 in bf16 is 8 KB). Backward: a warp walks over kRows rows and adds their
// gradients of alpha to its own row of partial sums in memory, which another kernel adds up in double.
//
// Bytes forward: h, a read, y written: 6 an element in bf16. N = 16384, C = 4096: 403 MB; floor A100
//   (2.04 TB/s) 197 us, H200 (4.8 TB/s) 84 us.
// Bytes backward: dy, h, a read, dh, da written: 10, and 4 / kRows of partial sums written and read, which
//   are in L2 while a warp adds to them: 705 MB; floor 346 us, 147 us.
#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "model/ops/normalized_update_backends.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr std::int64_t kRows = 16;
constexpr int kSlices = 8;

struct UpdateRows {
    std::int64_t count, width;
    const float* parameter;
    float factor;
    float* inverse;
    bool aligned;
};

__device__ inline float reciprocal_root(float squares) {
    return squares > 0.0f ? 1.0f / sqrtf(squares) : 0.0f;
}

// Calls f(index, count, alpha) for this lane's chunks of a row.
template <typename T, typename F>
__device__ __forceinline__ void for_each_chunk(const UpdateRows& rows, F&& f) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (std::int64_t at = lane * kChunk<T>; at < rows.width; at += kWarp * kChunk<T>) {
        const int count = chunk_size<T>(rows.width, at);
        float alpha[kChunk<T>];
        load_floats(rows.parameter + at, count, alpha, rows.aligned);
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) alpha[i] = fabsf(alpha[i]) * rows.factor;
        f(at, count, alpha);
    }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    normalized_update_forward_kernel(const UpdateRows rows, const T* h, const T* a, T* y) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    if (row >= rows.count) return;
    h += row * rows.width;
    a += row * rows.width;
    y += row * rows.width;
    float squares = 0.0f;
    for_each_chunk<T>(rows, [&](std::int64_t at, int count, const float(&)[kChunk<T>]) {
        float u[kChunk<T>];
        load_chunk(a + at, count, u, rows.aligned);
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) squares += u[i] * u[i];
    });
    const float of_a = reciprocal_root(sum_over_warp(squares));
    const auto moved = [&](std::int64_t at, int count, const float(&alpha)[kChunk<T>],
                           float(&result)[kChunk<T>]) {
        float u[kChunk<T>];
        load_chunk(a + at, count, u, rows.aligned);
        load_chunk(h + at, count, result, rows.aligned);
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) result[i] += alpha[i] * (u[i] * of_a - result[i]);
    };
    squares = 0.0f;
    for_each_chunk<T>(rows, [&](std::int64_t at, int count, const float(&alpha)[kChunk<T>]) {
        float r[kChunk<T>];
        moved(at, count, alpha, r);
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) squares += r[i] * r[i];
    });
    const float of_sum = reciprocal_root(sum_over_warp(squares));
    for_each_chunk<T>(rows, [&](std::int64_t at, int count, const float(&alpha)[kChunk<T>]) {
        float r[kChunk<T>];
        moved(at, count, alpha, r);
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) r[i] *= of_sum;
        store_chunk(y + at, count, r, rows.aligned);
    });
    if (threadIdx.x % kWarp == 0) {
        rows.inverse[2 * row] = of_a;
        rows.inverse[2 * row + 1] = of_sum;
    }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) normalized_update_backward_kernel(
    const UpdateRows rows, const T* dy, const T* h, const T* a, T* dh, T* da, float* partial) {
    const std::int64_t slot = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    const std::int64_t begin = slot * kRows;
    const std::int64_t end = begin + kRows < rows.count ? begin + kRows : rows.count;
    partial += slot * rows.width;
    for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t start = row * rows.width;
        const float of_a = rows.inverse[2 * row], of_sum = rows.inverse[2 * row + 1];
        // dy, h, Norm(a) and y of a chunk.
        struct Values {
            float dy[kChunk<T>], h[kChunk<T>], b[kChunk<T>], y[kChunk<T>];
        };
        const auto read = [&](std::int64_t at, int count, const float(&alpha)[kChunk<T>]) {
            Values v;
            load_chunk(dy + start + at, count, v.dy, rows.aligned);
            load_chunk(h + start + at, count, v.h, rows.aligned);
            load_chunk(a + start + at, count, v.b, rows.aligned);
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) {
                v.b[i] *= of_a;
                v.y[i] = (v.h[i] + alpha[i] * (v.b[i] - v.h[i])) * of_sum;
            }
            return v;
        };
        float along = 0.0f;
        for_each_chunk<T>(rows, [&](std::int64_t at, int count, const float(&alpha)[kChunk<T>]) {
            const Values v = read(at, count, alpha);
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) along += v.dy[i] * v.y[i];
        });
        const float along_y = sum_over_warp(along);
        along = 0.0f;
        for_each_chunk<T>(rows, [&](std::int64_t at, int count, const float(&alpha)[kChunk<T>]) {
            const Values v = read(at, count, alpha);
            float dalpha[kChunk<T>];
            load_floats(partial + at, row == begin ? 0 : count, dalpha, rows.aligned);
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) {
                const float g = of_sum * (v.dy[i] - v.y[i] * along_y);
                along += alpha[i] * g * v.b[i];
                dalpha[i] += g * (v.b[i] - v.h[i]);
            }
            store_floats(partial + at, count, dalpha, rows.aligned);
        });
        const float along_a = sum_over_warp(along);
        for_each_chunk<T>(rows, [&](std::int64_t at, int count, const float(&alpha)[kChunk<T>]) {
            const Values v = read(at, count, alpha);
            float to_a[kChunk<T>], to_h[kChunk<T>];
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) {
                const float g = of_sum * (v.dy[i] - v.y[i] * along_y);
                to_a[i] = of_a * (alpha[i] * g - v.b[i] * along_a);
                to_h[i] = (1.0f - alpha[i]) * g;
            }
            store_chunk(da + start + at, count, to_a, rows.aligned);
            store_chunk(dh + start + at, count, to_h, rows.aligned);
        });
    }
}

// dparameter += factor times the columns of partial [slots, width] times the parameter's sign: a block adds 32
// channels in kSlices slices of the slots, then the slices in order.
__global__ void __launch_bounds__(kSlices* kWarp) normalized_update_rate_kernel(
    const UpdateRows rows, const float* partial, std::int64_t slots, float* dparameter) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int slice = static_cast<int>(threadIdx.x) / kWarp;
    const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
    double sum = 0.0;
    if (channel < rows.width) {
        for (std::int64_t slot = slice; slot < slots; slot += kSlices) {
            sum += partial[slot * rows.width + channel];
        }
    }
    __shared__ double of_slice[kSlices][kWarp];
    of_slice[slice][lane] = sum;
    __syncthreads();
    if (slice != 0 || channel >= rows.width) return;
#pragma unroll
    for (int s = 1; s < kSlices; ++s) sum += of_slice[s][lane];
    const float factor = rows.parameter[channel] < 0.0f ? -rows.factor : rows.factor;
    dparameter[channel] = static_cast<float>(dparameter[channel] + factor * sum);
}

UpdateRows rows_of(const Tensor& h, const Tensor& parameter, float factor, const Tensor& inverse) {
    return {inverse.size(0),         h.size(-1),
            parameter.data<float>(), factor,
            inverse.data<float>(),   takes_chunks(parameter.raw(), 0, sizeof(float))};
}

bool chunks_of(const Tensor& tensor) {
    return takes_chunks(tensor.raw(), tensor.size(-1), size_of(tensor.dtype()));
}

}  // namespace

void normalized_update_forward(const Tensor& h,
                               const Tensor& a,
                               const Tensor& parameter,
                               float factor,
                               const Tensor& y,
                               const Tensor& inverse) {
    constexpr const char* kOp = "normalized_update_forward";
    UpdateRows rows = rows_of(h, parameter, factor, inverse);
    rows.aligned = rows.aligned && chunks_of(h) && chunks_of(a) && chunks_of(y);
    const LaunchShape shape{grid_size(kOp, (rows.count + kWarps - 1) / kWarps), dim3(kThreads)};
    for_storage_type(h.dtype(), [&]<typename T>() {
        launch(kOp, normalized_update_forward_kernel<T>, shape, rows,
               reinterpret_cast<const T*>(h.raw()), reinterpret_cast<const T*>(a.raw()),
               reinterpret_cast<T*>(y.raw()));
    });
}

void normalized_update_backward(const Tensor& dy,
                                const Tensor& h,
                                const Tensor& a,
                                const Tensor& parameter,
                                float factor,
                                const Tensor& inverse,
                                const Tensor& dh,
                                const Tensor& da,
                                const Tensor& dparameter) {
    constexpr const char* kOp = "normalized_update_backward";
    UpdateRows rows = rows_of(h, parameter, factor, inverse);
    const std::int64_t slots = (rows.count + kRows - 1) / kRows;
    const Tensor partial =
        Tensor::uninitialized({slots, rows.width}, DType::kFloat32, Device::kCuda);
    for (const Tensor& tensor : {dy, h, a, dh, da, partial}) {
        rows.aligned = rows.aligned && chunks_of(tensor);
    }
    const LaunchShape shape{grid_size(kOp, (slots + kWarps - 1) / kWarps), dim3(kThreads)};
    for_storage_type(h.dtype(), [&]<typename T>() {
        launch(kOp, normalized_update_backward_kernel<T>, shape, rows,
               reinterpret_cast<const T*>(dy.raw()), reinterpret_cast<const T*>(h.raw()),
               reinterpret_cast<const T*>(a.raw()), reinterpret_cast<T*>(dh.raw()),
               reinterpret_cast<T*>(da.raw()), partial.data<float>());
    });
    launch(kOp, normalized_update_rate_kernel,
           {grid_size(kOp, (rows.width + kWarp - 1) / kWarp), dim3(kSlices * kWarp)}, rows,
           partial.data<float>(), slots, dparameter.data<float>());
}

}  // namespace evenkeel::cuda
