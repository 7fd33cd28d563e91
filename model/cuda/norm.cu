// RMSNorm and LayerNorm, forward and backward, over rows of C elements.
//
// Tiles: a row belongs to 1, 2, 4, 8 or 16 whole warps, the fewest that hold it in registers: forward 4
// chunks of 16 bytes a lane, up to 16384 bf16 or 8192 fp32; backward 2 chunks of each of x and dy, half
// that width. What a longer row has beyond that is read twice, the second time mostly from L2, and
// backward adds to its gain gradients in memory. A CTA has 8 warps (16 for the longest rows), so several
// short rows. The statistic, and in the backward pass the mean of gain dy x rstd, is summed by shuffles
// and then over the row's warps in order. LayerNorm sums twice: forward the row, then squared deviations from
// its mean. That and the sums of the bias take registers: it holds half as many chunks.
//
// Bytes forward: x read and y written once; rstd written; the gain once from memory, then from L1.
//   N = 16384, C = 4096, bf16: 2 x 134.2 MB + 0.1 MB = 268.5 MB, 0.4 GFLOP: no limit.
//   Floor: A100 (2.04 TB/s) 132 us, H200 (4.8 TB/s) 56 us.
// Bytes backward: dy and x read, dx written (and read where it accumulates); for 16 to 64 rows a row of
//   fp32 partial sums of the gain's gradient, written once and read once by the second kernel.
//   As above, 64 rows to a partial sum: 3 x 134.2 + 2 x 4.2 MB = 411.0 MB; floor 201 us, 86 us. A bias has
//   another row.
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
template <bool kCentred>
constexpr int kForwardHeld = kCentred ? 2 : 4;
template <bool kCentred>
constexpr int kBackwardHeld = kCentred ? 1 : 2;
constexpr int kMostWarps = 16;
constexpr int kFewWarps = 8;  // of a CTA, unless a row needs more

struct NormRows {
    std::int64_t count = 0;
    int width = 0;
    int row_warps = 1;
    int rows_per_slot = 1;  // backward: how many rows a group of row_warps warps walks over
    const float* gain = nullptr;
    float gain_offset = 0.0f;
    const float* bias = nullptr;  // or none
    float* rstd = nullptr;
    float* mean = nullptr;  // LayerNorm
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

// A row without gain and bias. Where numbers are so large that a difference of two may not be finite, the
// reciprocal root is tiny, and halves are taken (as on the CPU).
template <bool kCentred>
struct Standardized {
    float factor, mean, rstd;

    __device__ Standardized(float row_mean, float row_rstd) {
        factor = kCentred && row_rstd < 1e-30f ? 0.5f : 1.0f;
        mean = row_mean * factor;
        rstd = row_rstd / factor;
    }
    __device__ float of(float x) const { return (kCentred ? x * factor - mean : x) * rstd; }
};

template <typename T, Chunks kChunks, bool kCentred>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    norm_forward_kernel(const NormRows rows, const T* x, T* y, const float eps) {
    const Place place(rows);
    const std::int64_t row = place.slot_of_grid;
    const bool exists = row < rows.count;
    const std::int64_t existing = exists ? row : 0;
    x += existing * rows.width;
    y += existing * rows.width;

    uint4 held[kForwardHeld<kCentred>];
    hold<kChunks>(rows, place, x, exists, held);
    __shared__ float of_warp[kCentred ? 2 : 1][kMostWarps];
    const auto width = static_cast<float>(rows.width);
    float center = 0.0f;  // the mean, of a LayerNorm
    if constexpr (kCentred) {
        float sum = 0.0f;
        for_each_chunk<kChunks>(rows, place, held, x, [&](int, const float(&v)[kChunk<T>]) {
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) sum += v[i];
        });
        center = sum_over_row(sum, of_warp[1], place) / width;
    }
    // From `middle`; the zeros beyond a row are no deviations.
    const auto deviation = [&](int at, int i, float value, auto middle) {
        if constexpr (!kCentred) return static_cast<decltype(middle)>(value);
        const bool inside = (kChunks == Chunks::kWhole ? at : at + i) < rows.width;
        return inside ? value - middle : 0;
    };
    float even = 0.0f, odd = 0.0f;
    for_each_chunk<kChunks>(rows, place, held, x, [&](int at, const float(&v)[kChunk<T>]) {
#pragma unroll
        for (int i = 0; i < kChunk<T>; i += 2) {
            const float a = deviation(at, i, v[i], center);
            const float b = deviation(at, i + 1, v[i + 1], center);
            even += a * a, odd += b * b;
        }
    });
    const float mean = sum_over_row(even + odd, of_warp[0], place) / width;  // of squares
    float rstd = 1.0f / sqrtf(mean + eps);

    const bool unusual = !(mean <= kLargeMean && mean + eps >= kSmallMean);
    if (place.row_warps == 1 ? unusual : __syncthreads_or(unusual)) [[unlikely]] {
        __shared__ double of_warp_in_double[kCentred ? 2 : 1][kMostWarps];
        // LayerNorm reads its row again, since what it holds would take too many registers in double.
        const auto for_each = [&](auto&& f) {
            if constexpr (kCentred) {
                const int step = place.row_threads * kChunk<T>;
                float values[kChunk<T>];
#pragma unroll 1
                for (int at = place.first * kChunk<T>; at < rows.width; at += step) {
                    load_chunk<kChunks>(x + at, chunk_size<T>(rows.width, at), values);
                    f(at, values);
                }
            } else {
                for_each_chunk<kChunks>(rows, place, held, x, f);
            }
        };
        double middle = 0.0, squares = 0.0;
        if constexpr (kCentred) {
            for_each([&](int, const float(&v)[kChunk<T>]) {
#pragma unroll
                for (int i = 0; i < kChunk<T>; ++i) middle += v[i];
            });
            middle =
                sum_over_row(middle, of_warp_in_double[1], place) / static_cast<double>(rows.width);
        }
        for_each([&](int at, const float(&v)[kChunk<T>]) {
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) {
                const double d = deviation(at, i, v[i], middle);
                squares += d * d;
            }
        });
        squares = sum_over_row(squares, of_warp_in_double[0], place);
        const double root = sqrt(squares / static_cast<double>(rows.width) + eps);
        if (unusual) {
            center = static_cast<float>(middle);
            const double inverse = root == 0.0 ? 0.0 : 1.0 / root;
            rstd = inverse > kLargeMean ? kLargeMean : static_cast<float>(inverse);
        }
    }

    if (!exists) return;
    if (place.first == 0) {
        rows.rstd[row] = rstd;
        if constexpr (kCentred) rows.mean[row] = center;
    }
    const Standardized<kCentred> standardized(center, rstd);
    for_each_chunk<kChunks>(rows, place, held, x, [&](int at, float(&v)[kChunk<T>]) {
        const int count = chunk_size<T>(rows.width, at);
        float gain[kChunk<T>];
        load_floats<kChunks>(rows.gain + at, count, gain);
#pragma unroll
        for (int i = 0; i < kChunk<T>; ++i) {
            v[i] = standardized.of(v[i]) * (gain[i] + rows.gain_offset);
        }
        if (kCentred && rows.bias != nullptr) {
            float bias[kChunk<T>];
            load_floats<kChunks>(rows.bias + at, count, bias);
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) v[i] += bias[i];
        }
        store_chunk<kChunks>(y + at, count, v);
    });
}

// A slot walks over rows_per_slot rows and keeps their gain gradients, of the channels that its
// threads hold in registers, until it writes them to its row of `partial`. Of channels beyond those it
// keeps the sum there all the time. The same for the bias, where there is one.
template <typename T, Chunks kChunks, bool kCentred>
__global__ void __launch_bounds__(kMostWarps* kWarp) norm_backward_kernel(const NormRows rows,
                                                                          const T* dy,
                                                                          const T* x,
                                                                          T* dx,
                                                                          const bool accumulate,
                                                                          float* partial,
                                                                          float* partial_bias) {
    constexpr int kHeld = kBackwardHeld<kCentred>;
    const Place place(rows);
    const std::int64_t begin = place.slot_of_grid * rows.rows_per_slot;
    const std::int64_t begin_of_block =
        (place.slot_of_grid - place.slot) * static_cast<std::int64_t>(rows.rows_per_slot);
    const int beyond = kHeld * place.row_threads * kChunk<T>;  // what is not held
    partial += place.slot_of_grid * rows.width;
    const bool has_bias = kCentred && partial_bias != nullptr;
    if (has_bias) partial_bias += place.slot_of_grid * rows.width;
    __shared__ float of_warp[kCentred ? 4 : 2][kMostWarps];

    float sums[kHeld][kChunk<T>] = {}, bias_sums[kHeld][kChunk<T>] = {};
    for (int r = 0; r < rows.rows_per_slot; ++r) {
        if (begin_of_block + r >= rows.count) break;  // the other slots of the CTA come later
        const std::int64_t row = begin + r;
        const bool exists = row < rows.count;
        const std::int64_t start = (exists ? row : 0) * rows.width;
        uint4 held_x[kHeld], held_dy[kHeld];
        hold<kChunks>(rows, place, x + start, exists, held_x);
        hold<kChunks>(rows, place, dy + start, exists, held_dy);
        const float rstd = exists ? rows.rstd[row] : 0.0f;
        const Standardized<kCentred> standardized(kCentred && exists ? rows.mean[row] : 0.0f, rstd);

        float dot = 0.0f, total = 0.0f;
        const auto take = [&](int at, const float(&u)[kChunk<T>], const float(&z)[kChunk<T>],
                              float(&sum)[kChunk<T>], float(&bias_sum)[kChunk<T>]) {
            float gain[kChunk<T>];
            load_floats<kChunks>(rows.gain + at, chunk_size<T>(rows.width, at), gain);
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) {
                const float zu = z[i] * standardized.of(u[i]);
                sum[i] += zu;
                if constexpr (kCentred) {
                    bias_sum[i] += z[i];
                    total += z[i] * (gain[i] + rows.gain_offset);
                }
                dot += zu * (gain[i] + rows.gain_offset);
            }
        };
        if (exists) {
#pragma unroll
            for (int i = 0; i < kHeld; ++i) {
                float u[kChunk<T>], z[kChunk<T>];
                unpack<T>(held_x[i], u);
                unpack<T>(held_dy[i], z);
                take((place.first + i * place.row_threads) * kChunk<T>, u, z, sums[i],
                     bias_sums[i]);
            }
            for (int at = beyond + place.first * kChunk<T>; at < rows.width;
                 at += place.row_threads * kChunk<T>) {
                const int count = chunk_size<T>(rows.width, at);
                float u[kChunk<T>], z[kChunk<T>], sum[kChunk<T>], bias_sum[kChunk<T>] = {};
                load_chunk<kChunks>(x + start + at, count, u);
                load_chunk<kChunks>(dy + start + at, count, z);
                load_floats<kChunks>(partial + at, r == 0 ? 0 : count, sum);
                if (has_bias) load_floats<kChunks>(partial_bias + at, r == 0 ? 0 : count, bias_sum);
                take(at, u, z, sum, bias_sum);
                store_floats<kChunks>(partial + at, count, sum);
                if (has_bias) store_floats<kChunks>(partial_bias + at, count, bias_sum);
            }
        }
        const float mean =
            sum_over_row(dot, of_warp[r % 2], place) / static_cast<float>(rows.width);
        float plain_mean = 0.0f;
        if constexpr (kCentred) {
            plain_mean =
                sum_over_row(total, of_warp[2 + r % 2], place) / static_cast<float>(rows.width);
        }
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
                float d = (gain[i] + rows.gain_offset) * z[i];
                if constexpr (kCentred) d -= plain_mean;
                result[i] += rstd * (d - standardized.of(u[i]) * mean);
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
        const int count = chunk_size<T>(rows.width, at);
        store_floats<kChunks>(partial + at, count, sums[i]);
        if (has_bias) store_floats<kChunks>(partial_bias + at, count, bias_sums[i]);
    }
}

// dgain += the columns of partial [slots, width].
__global__ void __launch_bounds__(kColumnSlices* kWarp)
    norm_gain_kernel(const float* partial, std::int64_t slots, std::int64_t width, float* dgain) {
    add_column_sums(partial, slots, width, dgain);
}

NormRows rows_of(const char* op,
                 int held_chunks,
                 const Tensor& x,
                 const Tensor& gain,
                 double gain_offset,
                 const Tensor& statistics) {
    NormRows rows;
    rows.count = statistics.size(-1);
    EVENKEEL_CHECK(x.size(-1) < INT32_MAX - (1 << 20), op, "width: got ", x.size(-1),
                   ", want fewer than 2^31 - 2^20");  // offsets in a row are ints
    rows.width = static_cast<int>(x.size(-1));
    const std::int64_t chunk = 16 / static_cast<std::int64_t>(size_of(x.dtype()));
    const std::int64_t held = held_chunks * kWarp * chunk;  // by a warp
    while (rows.row_warps < kMostWarps && rows.row_warps * held < rows.width) rows.row_warps *= 2;
    rows.gain = gain.data<float>();
    rows.gain_offset = static_cast<float>(gain_offset);
    rows.rstd = statistics.data<float>();
    rows.mean = statistics.rank() == 2 ? rows.rstd + rows.count : nullptr;
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

template <bool kCentred>
void norm_forward(const char* op,
                  const Tensor& x,
                  const Tensor& gain,
                  const Tensor& bias,
                  double eps,
                  const Tensor& y,
                  const Tensor& statistics,
                  double gain_offset) {
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    const Tensor bias_fp32 = bias.defined() ? bias.to(DType::kFloat32) : gain_fp32;
    NormRows rows = rows_of(op, kForwardHeld<kCentred>, x, gain_fp32, gain_offset, statistics);
    if (bias.defined()) rows.bias = bias_fp32.data<float>();
    dispatch(x, {&x, &y, &gain_fp32, &bias_fp32}, [&]<typename T, Chunks kChunks>() {
        launch(op, norm_forward_kernel<T, kChunks, kCentred>, shape_of(op, rows, rows.count), rows,
               reinterpret_cast<const T*>(x.raw()), reinterpret_cast<T*>(y.raw()),
               static_cast<float>(eps));
    });
}

template <bool kCentred>
void norm_backward(const char* op,
                   const Tensor& dy,
                   const Tensor& x,
                   const Tensor& gain,
                   const Tensor& statistics,
                   bool accumulate,
                   const Tensor& dx,
                   const Tensor& dgain,
                   const Tensor& dbias,
                   double gain_offset) {
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    NormRows rows = rows_of(op, kBackwardHeld<kCentred>, x, gain_fp32, gain_offset, statistics);
    rows.rows_per_slot = rows_per_slot(rows);
    const std::int64_t slots = (rows.count + rows.rows_per_slot - 1) / rows.rows_per_slot;
    const Tensor sums[] = {dgain, dbias};
    float* partial[] = {nullptr, nullptr};
    Tensor memory[2];
    for (int i = 0; i < 2; ++i) {
        if (!sums[i].defined()) continue;
        memory[i] = Tensor::uninitialized({slots, rows.width}, DType::kFloat32, Device::kCuda);
        partial[i] = memory[i].data<float>();
    }
    dispatch(x, {&x, &dy, &dx, &gain_fp32}, [&]<typename T, Chunks kChunks>() {
        launch(op, norm_backward_kernel<T, kChunks, kCentred>, shape_of(op, rows, slots), rows,
               reinterpret_cast<const T*>(dy.raw()), reinterpret_cast<const T*>(x.raw()),
               reinterpret_cast<T*>(dx.raw()), accumulate, partial[0], partial[1]);
    });
    for (int i = 0; i < 2; ++i) {
        if (!sums[i].defined()) continue;
        launch(op, norm_gain_kernel,
               {grid_size(op, (rows.width + kWarp - 1) / kWarp), dim3(kColumnSlices * kWarp)},
               partial[i], slots, rows.width, sums[i].data<float>());
    }
}

}  // namespace

void rms_norm_forward(const Tensor& x,
                      const Tensor& gain,
                      double eps,
                      const Tensor& y,
                      const Tensor& rstd,
                      double gain_offset) {
    norm_forward<false>("rms_norm_forward", x, gain, {}, eps, y, rstd, gain_offset);
}

void rms_norm_backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& gain,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx,
                       const Tensor& dgain,
                       double gain_offset) {
    norm_backward<false>("rms_norm_backward", dy, x, gain, rstd, accumulate, dx, dgain, {},
                         gain_offset);
}

void layer_norm_forward(const Tensor& x,
                        const Tensor& gain,
                        const Tensor& bias,
                        double eps,
                        const Tensor& y,
                        const Tensor& statistics,
                        double gain_offset) {
    norm_forward<true>("layer_norm_forward", x, gain, bias, eps, y, statistics, gain_offset);
}

void layer_norm_backward(const Tensor& dy,
                         const Tensor& x,
                         const Tensor& gain,
                         const Tensor& statistics,
                         bool accumulate,
                         const Tensor& dx,
                         const Tensor& dgain,
                         const Tensor& dbias,
                         double gain_offset) {
    norm_backward<true>("layer_norm_backward", dy, x, gain, statistics, accumulate, dx, dgain,
                        dbias, gain_offset);
}

}  // namespace evenkeel::cuda
