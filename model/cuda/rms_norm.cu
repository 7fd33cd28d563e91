// RMSNorm forward and backward over rows of C elements.
//
// Tiles: a row belongs to 1, 2, 4, 8 or 16 whole warps, the fewest that hold it in registers: forward 4
// chunks of 16 bytes a lane, up to 16384 bf16 or 8192 fp32; backward 2 chunks of each of x and dy, half
// that width. What a longer row has beyond that is read twice, the second time mostly from L2, and
// backward adds to its gain gradients in memory. A CTA has 8 warps (16 for the longest rows), so several
// short rows. The statistic, and in the backward pass the mean of gain dy x rstd, is summed by shuffles
// and then over the row's warps in order.
//
// Bytes forward: x read and y written once; rstd written; the gain once from memory, then from L1.
//   N = 16384, C = 4096, bf16: 2 x 134.2 MB + 0.1 MB = 268.5 MB, 0.4 GFLOP: no limit.
//   Floor: A100 (2.04 TB/s) 132 us, H200 (4.8 TB/s) 56 us.
// Bytes backward: dy and x read, dx written (and read where it accumulates); for 16 to 64 rows a row of
//   fp32 partial sums of the gain's gradient, written once and read once by the second kernel.
//   As above, 64 rows to a partial sum: 3 x 134.2 + 2 x 4.2 MB = 411.0 MB; floor 201 us, 86 us.
//
// The order of every sum is fixed by N and C alone: the same bits in every run.
#include <algorithm>
#include <initializer_list>

#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "framework/error.h"
#include "model/cuda/elementwise.h"

namespace evenkeel::cuda {
namespace {

// Chunks of a row in a lane's registers; backward of two tensors, beside the sums of gain gradients.
constexpr int kForwardHeld = 4, kBackwardHeld = 2;
constexpr int kMostWarps = 16;
constexpr int kFewWarps = 8;  // of a CTA, unless a row needs more

struct NormRows {
    std::int64_t count = 0;
    int width = 0;
    int row_warps = 1;
    int rows_per_slot = 1;  // backward: how many rows a group of row_warps warps walks over
    const float* gain = nullptr;
    float gain_offset = 0.0f;
    float* rstd = nullptr;
};

// Where a thread stands: the slots of a CTA are its groups of row_warps warps.
struct Place {
    int lane, warp, slot, row_warps;
    int row_threads;  // of a row
    int first;        // chunk of this thread; the next ones are row_threads apart
    std::int64_t slot_of_grid;

    __device__ explicit Place(const NormRows& rows) : row_warps(rows.row_warps) {
        lane = static_cast<int>(threadIdx.x) % kWarp;
        warp = static_cast<int>(threadIdx.x) / kWarp;
        slot = warp / row_warps;
        row_threads = row_warps * kWarp;
        first = static_cast<int>(threadIdx.x) - slot * row_threads;
        const int slots = static_cast<int>(blockDim.x) / row_threads;
        slot_of_grid = static_cast<std::int64_t>(blockIdx.x) * slots + slot;
    }
};

// The sum over the threads of a row, the same bits in each of them. All threads of the CTA call it
// together; of_warp may be used again after one more barrier.
template <typename Real>
__device__ __forceinline__ Real sum_over_row(Real value, Real* of_warp, const Place& place) {
    value = sum_over_warp(value);
    if (place.row_warps == 1) return value;
    if (place.lane == 0) of_warp[place.warp] = value;
    __syncthreads();
    const Real* from = of_warp + place.slot * place.row_warps;
    Real total = 0;
    for (int w = 0; w < place.row_warps; ++w) total += from[w];
    return total;
}

// Squares below this lose bits, or all of them, in fp32 (as on the CPU).
constexpr float kSmallMean = 1e-30f;
constexpr float kLargeMean = 3e38f;

// Calls f(index, chunk of x) for all of this thread's chunks, the held ones first.
template <Chunks kChunks, typename T, int kHeld, typename F>
__device__ __forceinline__ void for_each_chunk(
    const NormRows& rows, const Place& place, const uint4 (&held)[kHeld], const T* x, F&& f) {
    float values[kChunk<T>];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        unpack<T>(held[i], values);
        f((place.first + i * place.row_threads) * kChunk<T>, values);
    }
    for (int at = (place.first + kHeld * place.row_threads) * kChunk<T>; at < rows.width;
         at += place.row_threads * kChunk<T>) {
        load_chunk<kChunks>(x + at, chunk_size<T>(rows.width, at), values);
        f(at, values);
    }
}

template <Chunks kChunks, typename T, int kHeld>
__device__ __forceinline__ void hold(
    const NormRows& rows, const Place& place, const T* row, bool exists, uint4 (&held)[kHeld]) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int at = (place.first + i * place.row_threads) * kChunk<T>;
        held[i] = load_packed<kChunks>(row + at, exists ? chunk_size<T>(rows.width, at) : 0);
    }
}

template <typename T, Chunks kChunks>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    rms_norm_forward_kernel(const NormRows rows, const T* x, T* y, const float eps) {
    const Place place(rows);
    const std::int64_t row = place.slot_of_grid;
    const bool exists = row < rows.count;
    const std::int64_t existing = exists ? row : 0;
    x += existing * rows.width;
    y += existing * rows.width;

    uint4 held[kForwardHeld];
    hold<kChunks>(rows, place, x, exists, held);
    float even = 0.0f, odd = 0.0f;
    for_each_chunk<kChunks>(rows, place, held, x, [&](int, const float(&v)[kChunk<T>]) {
#pragma unroll
        for (int i = 0; i < kChunk<T>; i += 2) even += v[i] * v[i], odd += v[i + 1] * v[i + 1];
    });
    __shared__ float of_warp[kMostWarps];
    const float mean = sum_over_row(even + odd, of_warp, place) / static_cast<float>(rows.width);
    float rstd = 1.0f / sqrtf(mean + eps);

    const bool unusual = !(mean <= kLargeMean && mean + eps >= kSmallMean);
    if (place.row_warps == 1 ? unusual : __syncthreads_or(unusual)) [[unlikely]] {
        double squares = 0.0;
        for_each_chunk<kChunks>(rows, place, held, x, [&](int, const float(&v)[kChunk<T>]) {
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) squares += static_cast<double>(v[i]) * v[i];
        });
        __shared__ double of_warp_in_double[kMostWarps];
        squares = sum_over_row(squares, of_warp_in_double, place);
        const double root = sqrt(squares / static_cast<double>(rows.width) + eps);
        if (unusual) {
            const double inverse = root == 0.0 ? 0.0 : 1.0 / root;
            rstd = inverse > kLargeMean ? kLargeMean : static_cast<float>(inverse);
        }
    }

    if (!exists) return;
    if (place.first == 0) rows.rstd[row] = rstd;
    for_each_chunk<kChunks>(rows, place, held, x, [&](int at, float(&v)[kChunk<T>]) {
        const int count = chunk_size<T>(rows.width, at);
        float gain[kChunk<T>];
        load_floats<kChunks>(rows.gain + at, count, gain);
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) v[i] = v[i] * rstd * (gain[i] + rows.gain_offset);
        store_chunk<kChunks>(y + at, count, v);
    });
}

// A slot walks over rows_per_slot rows and keeps their gain gradients, of the channels that its
// threads hold in registers, until it writes them to its row of `partial`. Of channels beyond those it
// keeps the sum there all the time.
template <typename T, Chunks kChunks>
__global__ void __launch_bounds__(kMostWarps* kWarp) rms_norm_backward_kernel(
    const NormRows rows, const T* dy, const T* x, T* dx, const bool accumulate, float* partial) {
    constexpr int kHeld = kBackwardHeld;
    const Place place(rows);
    const std::int64_t begin = place.slot_of_grid * rows.rows_per_slot;
    const std::int64_t begin_of_block =
        (place.slot_of_grid - place.slot) * static_cast<std::int64_t>(rows.rows_per_slot);
    const int beyond = kHeld * place.row_threads * kChunk<T>;  // what is not held
    partial += place.slot_of_grid * rows.width;
    __shared__ float of_warp[2][kMostWarps];

    float sums[kHeld][kChunk<T>] = {};
    for (int r = 0; r < rows.rows_per_slot; ++r) {
        if (begin_of_block + r >= rows.count) break;  // the other slots of the CTA come later
        const std::int64_t row = begin + r;
        const bool exists = row < rows.count;
        const std::int64_t start = (exists ? row : 0) * rows.width;
        uint4 held_x[kHeld], held_dy[kHeld];
        hold<kChunks>(rows, place, x + start, exists, held_x);
        hold<kChunks>(rows, place, dy + start, exists, held_dy);
        const float rstd = exists ? rows.rstd[row] : 0.0f;

        float dot = 0.0f;
        const auto take = [&](int at, const float(&u)[kChunk<T>], const float(&z)[kChunk<T>],
                              float(&sum)[kChunk<T>]) {
            float gain[kChunk<T>];
            load_floats<kChunks>(rows.gain + at, chunk_size<T>(rows.width, at), gain);
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) {
                const float zu = z[i] * (u[i] * rstd);
                sum[i] += zu;
                dot += zu * (gain[i] + rows.gain_offset);
            }
        };
        if (exists) {
#pragma unroll
            for (int i = 0; i < kHeld; ++i) {
                float u[kChunk<T>], z[kChunk<T>];
                unpack<T>(held_x[i], u);
                unpack<T>(held_dy[i], z);
                take((place.first + i * place.row_threads) * kChunk<T>, u, z, sums[i]);
            }
            for (int at = beyond + place.first * kChunk<T>; at < rows.width;
                 at += place.row_threads * kChunk<T>) {
                const int count = chunk_size<T>(rows.width, at);
                float u[kChunk<T>], z[kChunk<T>], sum[kChunk<T>];
                load_chunk<kChunks>(x + start + at, count, u);
                load_chunk<kChunks>(dy + start + at, count, z);
                load_floats<kChunks>(partial + at, r == 0 ? 0 : count, sum);
                take(at, u, z, sum);
                store_floats<kChunks>(partial + at, count, sum);
            }
        }
        const float mean =
            sum_over_row(dot, of_warp[r % 2], place) / static_cast<float>(rows.width);
        if (!exists) continue;

        const auto put = [&](int at, const float(&u)[kChunk<T>], const float(&z)[kChunk<T>]) {
            const int count = chunk_size<T>(rows.width, at);
            float gain[kChunk<T>], result[kChunk<T>];
            load_floats<kChunks>(rows.gain + at, count, gain);
            if (accumulate) {
                load_chunk<kChunks>(dx + start + at, count, result);
            } else {
#pragma unroll
                for (int i = 0; i < kChunk<T>; ++i) result[i] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) {
                result[i] += rstd * ((gain[i] + rows.gain_offset) * z[i] - u[i] * rstd * mean);
            }
            store_chunk<kChunks>(dx + start + at, count, result);
        };
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            float u[kChunk<T>], z[kChunk<T>];
            unpack<T>(held_x[i], u);
            unpack<T>(held_dy[i], z);
            put((place.first + i * place.row_threads) * kChunk<T>, u, z);
        }
        for (int at = beyond + place.first * kChunk<T>; at < rows.width;
             at += place.row_threads * kChunk<T>) {
            const int count = chunk_size<T>(rows.width, at);
            float u[kChunk<T>], z[kChunk<T>];
            load_chunk<kChunks>(x + start + at, count, u);
            load_chunk<kChunks>(dy + start + at, count, z);
            put(at, u, z);
        }
    }

    if (begin >= rows.count) return;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int at = (place.first + i * place.row_threads) * kChunk<T>;
        store_floats<kChunks>(partial + at, chunk_size<T>(rows.width, at), sums[i]);
    }
}

// dgain += the columns of partial [slots, width], in double: a CTA adds 32 channels in kSlices slices of
// the rows, then the slices in order.
constexpr int kSlices = 8;

__global__ void __launch_bounds__(kSlices* kWarp) rms_norm_gain_kernel(const float* partial,
                                                                       std::int64_t slots,
                                                                       std::int64_t width,
                                                                       float* dgain) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int slice = static_cast<int>(threadIdx.x) / kWarp;
    const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
    double sum = 0.0;
    if (channel < width) {
#pragma unroll 4
        for (std::int64_t slot = slice; slot < slots; slot += kSlices) {
            sum += partial[slot * width + channel];
        }
    }
    __shared__ double of_slice[kSlices][kWarp];
    of_slice[slice][lane] = sum;
    __syncthreads();
    if (slice != 0 || channel >= width) return;
#pragma unroll
    for (int s = 1; s < kSlices; ++s) sum += of_slice[s][lane];
    dgain[channel] = static_cast<float>(dgain[channel] + sum);
}

NormRows rows_of(
    const char* op, int held_chunks, const Tensor& x, const Tensor& gain, const Tensor& rstd) {
    NormRows rows;
    rows.count = rstd.numel();
    EVENKEEL_CHECK(x.size(-1) < INT32_MAX - (1 << 20), op, "width: got ", x.size(-1),
                   ", want fewer than 2^31 - 2^20");  // offsets in a row are ints
    rows.width = static_cast<int>(x.size(-1));
    const std::int64_t chunk = 16 / static_cast<std::int64_t>(size_of(x.dtype()));
    const std::int64_t held = held_chunks * kWarp * chunk;  // by a warp
    while (rows.row_warps < kMostWarps && rows.row_warps * held < rows.width) rows.row_warps *= 2;
    rows.gain = gain.data<float>();
    rows.rstd = rstd.data<float>();
    return rows;
}

int warps_of(const NormRows& rows) { return std::max(kFewWarps, rows.row_warps); }

LaunchShape shape_of(const char* op, const NormRows& rows, std::int64_t slots) {
    const int slots_of_block = warps_of(rows) / rows.row_warps;
    return {grid_size(op, (slots + slots_of_block - 1) / slots_of_block),
            dim3(static_cast<unsigned>(warps_of(rows) * kWarp))};
}

// Calls f.operator()<storage type, accesses>().
template <typename F>
void dispatch(const Tensor& x, std::initializer_list<const Tensor*> tensors, F&& f) {
    const bool whole = std::all_of(tensors.begin(), tensors.end(), [&](const Tensor* tensor) {
        return takes_chunks(tensor->raw(), x.size(-1), size_of(x.dtype()));
    });
    for_storage_type(x.dtype(), [&]<typename T>() {
        whole ? f.template operator()<T, Chunks::kWhole>()
              : f.template operator()<T, Chunks::kSingle>();
    });
}

// Few partial sums, but enough slots to fill a GPU.
int rows_per_slot(const NormRows& rows) {
    constexpr std::int64_t kFillingWarps = 2048, kLeast = 16, kMost = 64;
    const std::int64_t slots = kFillingWarps / rows.row_warps;
    return static_cast<int>(std::clamp((rows.count + slots - 1) / slots, kLeast, kMost));
}

}  // namespace

void rms_norm_forward(const Tensor& x,
                      const Tensor& gain,
                      double eps,
                      const Tensor& y,
                      const Tensor& rstd,
                      double gain_offset) {
    constexpr const char* kOp = "rms_norm_forward";
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    NormRows rows = rows_of(kOp, kForwardHeld, x, gain_fp32, rstd);
    rows.gain_offset = static_cast<float>(gain_offset);
    dispatch(x, {&x, &y, &gain_fp32}, [&]<typename T, Chunks kChunks>() {
        launch(kOp, rms_norm_forward_kernel<T, kChunks>, shape_of(kOp, rows, rows.count), rows,
               reinterpret_cast<const T*>(x.raw()), reinterpret_cast<T*>(y.raw()),
               static_cast<float>(eps));
    });
}

void rms_norm_backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& gain,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx,
                       const Tensor& dgain,
                       double gain_offset) {
    constexpr const char* kOp = "rms_norm_backward";
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    NormRows rows = rows_of(kOp, kBackwardHeld, x, gain_fp32, rstd);
    rows.gain_offset = static_cast<float>(gain_offset);
    rows.rows_per_slot = rows_per_slot(rows);
    const std::int64_t slots = (rows.count + rows.rows_per_slot - 1) / rows.rows_per_slot;
    const Tensor partial =
        Tensor::uninitialized({slots, rows.width}, DType::kFloat32, Device::kCuda);
    dispatch(x, {&x, &dy, &dx, &gain_fp32}, [&]<typename T, Chunks kChunks>() {
        launch(kOp, rms_norm_backward_kernel<T, kChunks>, shape_of(kOp, rows, slots), rows,
               reinterpret_cast<const T*>(dy.raw()), reinterpret_cast<const T*>(x.raw()),
               reinterpret_cast<T*>(dx.raw()), accumulate, partial.data<float>());
    });
    launch(kOp, rms_norm_gain_kernel,
           {grid_size(kOp, (rows.width + kWarp - 1) / kWarp), dim3(kSlices * kWarp)},
           partial.data<float>(), slots, rows.width, dgain.data<float>());
}

}  // namespace evenkeel::cuda
