// Cross-entropy over one rank's part of the vocabulary: a CTA a row of W logits.
//
// Forward reads the logits once: each thread keeps the largest logit it has seen and the sum of
// exponentials of what stands below it, and brings the sum to a new maximum as it goes (Milakov and
// Gimelshein 2018); threads are joined by shuffles, then warps in order. Backward reads and writes them
// once. The sum of the loss over rows is one of doubles in an order that the number of rows fixes.
//
// Bytes, N = 16384, W = 16032 (V = 128256 over P = 8), bf16, 525.3 MB: forward as much, floor A100
// (2.04 TB/s) 258 us, H200 (4.8 TB/s) 109 us; backward twice that. About 6 instructions an element,
// where an H200 can issue 12 in the time that its 2 bytes take.
#include <algorithm>
#include <cfloat>

#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "framework/error.h"
#include "parallel/vocab_backends.h"

namespace evenkeel::cuda {
namespace {

constexpr int kMostThreads = 256;
constexpr int kMostWarps = kMostThreads / kWarp;
constexpr int kFinishThreads = 256;
constexpr float kLog2e = 1.44269504f;

// 2^x to within 2^-22; 0 below 2^-126.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float exp_approx(float x) { return exp2_approx(x * kLog2e); }

struct Rows {
    const void* logits = nullptr;
    std::int64_t stride = 0;  // in elements
    int count = 0, width = 0;
    const std::int32_t* targets = nullptr;
    std::int64_t vocab_begin = 0, vocab_size = 0;
};

// What a target means to a row on this rank.
struct Target {
    bool ignored, bad;
    std::int64_t local;  // index in the row; outside it where the target is elsewhere

    __device__ Target(const Rows& rows, int row) {
        const std::int64_t id = rows.targets[row];
        ignored = id == -1;
        bad = id < -1 || id >= rows.vocab_size;
        local = ignored || bad ? -1 : id - rows.vocab_begin;
    }
};

// A tile is one chunk for each thread of the CTA. Where rows do not start at multiples of 16 bytes a
// thread's elements stand blockDim.x apart instead, so that a warp still reads whole sectors.
template <typename T, Chunks kChunks>
struct Tile {
    int first, apart;  // of this thread's elements

    __device__ explicit Tile(int start) {
        const int thread = static_cast<int>(threadIdx.x);
        first = start + (kChunks == Chunks::kWhole ? thread * kChunk<T> : thread);
        apart = kChunks == Chunks::kWhole ? 1 : static_cast<int>(blockDim.x);
    }
    __device__ static int size() { return static_cast<int>(blockDim.x) * kChunk<T>; }
    __device__ int index(int i) const { return first + i * apart; }

    __device__ void load(const T* row, int width, float (&values)[kChunk<T>]) const {
        if constexpr (kChunks == Chunks::kWhole) {
            load_chunk<kChunks>(row + first, width - first, values, true, -INFINITY);
        } else {
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) {
                values[i] = index(i) < width ? widen(row[index(i)]) : -INFINITY;
            }
        }
    }
    __device__ void store(T* row, int width, const float (&values)[kChunk<T>]) const {
        if constexpr (kChunks == Chunks::kWhole) {
            store_chunk<kChunks>(row + first, width - first, values);
        } else {
#pragma unroll
            for (int i = 0; i < kChunk<T>; ++i) {
                if (index(i) < width) store_chunk<Chunks::kSingle>(row + index(i), 1, {values[i]});
            }
        }
    }
};

// The largest number so far and the sum of exponentials of what stands below it. The maximum starts at
// the lowest finite number, so that a row of minus infinities gives a sum of 0 and no NaN.
struct MaxAndSum {
    float max = -FLT_MAX, sum = 0.0f;

    // The same bits whichever of the two is `this`.
    __device__ void join(float other_max, float other_sum) {
        const float larger = fmaxf(max, other_max);
        sum = sum * exp_approx(max - larger) + other_sum * exp_approx(other_max - larger);
        max = larger;
    }
};

template <typename T, Chunks kChunks>
__global__ void __launch_bounds__(kMostThreads)
    cross_entropy_rows_kernel(const Rows rows, float* maxima, float* own_maxima, float* sums) {
    constexpr int kTiles = 2;  // whose loads are open at a time
    const int row = static_cast<int>(blockIdx.x);
    const T* logits = static_cast<const T*>(rows.logits) + row * rows.stride;
    MaxAndSum mine;
    const int size = Tile<T, kChunks>::size();
    for (int start = 0; start < rows.width; start += kTiles * size) {
        float values[kTiles][kChunk<T>];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            Tile<T, kChunks>(start + i * size).load(logits, rows.width, values[i]);
        }
        float larger = mine.max;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int c = 0; c < kChunk<T>; ++c) larger = fmaxf(larger, values[i][c]);
        }
        mine.sum *= exp_approx(mine.max - larger);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int c = 0; c < kChunk<T>; ++c) mine.sum += exp_approx(values[i][c] - larger);
        }
        mine.max = larger;
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
        const float max = __shfl_xor_sync(kAllLanes, mine.max, step);
        const float sum = __shfl_xor_sync(kAllLanes, mine.sum, step);
        mine.join(max, sum);
    }
    __shared__ float max_of_warp[kMostWarps], sum_of_warp[kMostWarps];
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (threadIdx.x % kWarp == 0) max_of_warp[warp] = mine.max, sum_of_warp[warp] = mine.sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
        mine.join(max_of_warp[w], sum_of_warp[w]);
    }
    maxima[row] = own_maxima[row] = mine.max;
    sums[row] = mine.sum;
    const Target target(rows, row);
    float logit = 0.0f;
    if (target.local >= 0 && target.local < rows.width) logit = widen(logits[target.local]);
    if (target.bad) logit = NAN;
    sums[rows.count + row] = logit;
}

// Brings the sums from this rank's maxima to those of all ranks.
__global__ void __launch_bounds__(kFinishThreads) cross_entropy_rescale_kernel(
    const int count, const float* own_maxima, const float* maxima, float* sums) {
    const int row = static_cast<int>(blockIdx.x) * kFinishThreads + static_cast<int>(threadIdx.x);
    if (row < count) sums[row] *= exp_approx(own_maxima[row] - maxima[row]);
}

// A part of the loss: a sum over rows, and how many they are.
struct Part {
    double loss;
    int count;
};

// The sum over the CTA, in thread 0.
__device__ __forceinline__ Part sum_over_block(Part part) {
    __shared__ Part of_warp[kFinishThreads / kWarp];
    part.loss = sum_over_warp(part.loss);
    part.count = sum_over_warp(part.count);
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = part;
    __syncthreads();
    if (threadIdx.x != 0) return part;
    for (int w = 1; w < kFinishThreads / kWarp; ++w) {
        part.loss += of_warp[w].loss;
        part.count += of_warp[w].count;
    }
    return part;
}

__global__ void __launch_bounds__(kFinishThreads) cross_entropy_loss_kernel(
    const Rows rows, const float* maxima, const float* sums, float* log_sum_exp, Part* parts) {
    const int row = static_cast<int>(blockIdx.x) * kFinishThreads + static_cast<int>(threadIdx.x);
    Part part{0.0, 0};
    if (row < rows.count) {
        const float max = maxima[row], sum = sums[row];
        log_sum_exp[row] = max + logf(sum);
        if (!Target(rows, row).ignored) {
            part.loss =
                (static_cast<double>(max) - sums[rows.count + row]) + log(static_cast<double>(sum));
            part.count = 1;
        }
    }
    part = sum_over_block(part);
    if (threadIdx.x == 0) parts[blockIdx.x] = part;
}

__global__ void __launch_bounds__(kFinishThreads) cross_entropy_mean_kernel(
    const int count, const Part* parts, const double weight, std::int32_t* counted, double* loss) {
    Part part{0.0, 0};
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kFinishThreads) {
        part.loss += parts[i].loss;
        part.count += parts[i].count;
    }
    part = sum_over_block(part);
    if (threadIdx.x != 0) return;
    *counted = part.count;
    if (part.count > 0) *loss += weight * (part.loss / part.count);
}

// dlogits may be the logits: a thread reads its elements before it writes them.
template <typename T, Chunks kChunks>
__global__ void __launch_bounds__(kMostThreads)
    cross_entropy_gradient_kernel(const Rows rows,
                                  const float* log_sum_exp,
                                  const std::int32_t* counted,
                                  const float loss_scale,
                                  T* dlogits,
                                  const std::int64_t stride) {
    const int row = static_cast<int>(blockIdx.x);
    const T* logits = static_cast<const T*>(rows.logits) + row * rows.stride;
    dlogits += row * stride;
    const Target target(rows, row);
    const float log_sum = log_sum_exp[row];
    // A target that is not ignored has been counted.
    const float scale = target.bad ? NAN : loss_scale / static_cast<float>(max(*counted, 1));
    const int size = Tile<T, kChunks>::size();
    for (int start = 0; start < rows.width; start += size) {
        const Tile<T, kChunks> tile(start);
        float values[kChunk<T>] = {};
        if (!target.ignored) {
            tile.load(logits, rows.width, values);
#pragma unroll
            for (int c = 0; c < kChunk<T>; ++c) {
                const float probability = exp_approx(values[c] - log_sum);
                values[c] =
                    (tile.index(c) == target.local ? probability - 1.0f : probability) * scale;
            }
        }
        tile.store(dlogits, rows.width, values);
    }
}

Rows rows_of(const char* op, const LogitRows& rows) {
    constexpr int kSpare = 1 << 20;  // offsets in a row are ints
    EVENKEEL_CHECK(rows.width() <= INT32_MAX - kSpare, op, "logits: got a width of ", rows.width(),
                   ", want fewer than 2^31 - 2^20");
    return {rows.logits.raw(),
            rows.logits.stride(0),
            static_cast<int>(rows.count()),
            static_cast<int>(rows.width()),
            rows.targets.data<std::int32_t>(),
            rows.vocab_begin,
            rows.vocab_size};
}

// Calls f.operator()<storage type, accesses>(threads).
template <typename F>
void dispatch(const LogitRows& rows, const Tensor& out, F&& f) {
    const auto whole = [&](const Tensor& tensor) {
        const std::size_t element = size_of(tensor.dtype());
        return takes_chunks(tensor.raw(), tensor.stride(0), element) &&
               takes_chunks(nullptr, rows.width(), element);
    };
    for_storage_type(rows.logits.dtype(), [&]<typename T>() {
        const std::int64_t chunks = (rows.width() + kChunk<T> - 1) / kChunk<T>;
        // One at least: a rank may have no part of the vocabulary.
        const std::int64_t warps = std::max<std::int64_t>((chunks + kWarp - 1) / kWarp, 1);
        const dim3 threads(static_cast<unsigned>(std::min<std::int64_t>(warps, kMostWarps)) *
                           kWarp);
        if (whole(rows.logits) && whole(out)) {
            f.template operator()<T, Chunks::kWhole>(threads);
        } else {
            f.template operator()<T, Chunks::kSingle>(threads);
        }
    });
}

LaunchShape finish_shape(const char* op, std::int64_t rows) {
    return {grid_size(op, (rows + kFinishThreads - 1) / kFinishThreads), dim3(kFinishThreads)};
}

}  // namespace

void cross_entropy_maxima(const LogitRows& rows,
                          const Tensor& maxima,
                          const Tensor& own_maxima,
                          const Tensor& sums) {
    constexpr const char* kOp = "cross_entropy_forward";
    dispatch(rows, rows.logits, [&]<typename T, Chunks kChunks>(dim3 threads) {
        launch(kOp, cross_entropy_rows_kernel<T, kChunks>, {grid_size(kOp, rows.count()), threads},
               rows_of(kOp, rows), maxima.data<float>(), own_maxima.data<float>(),
               sums.data<float>());
    });
}

void cross_entropy_sums(const Tensor& own_maxima, const Tensor& maxima, const Tensor& sums) {
    constexpr const char* kOp = "cross_entropy_forward";
    launch(kOp, cross_entropy_rescale_kernel, finish_shape(kOp, maxima.numel()),
           static_cast<int>(maxima.numel()), own_maxima.data<float>(), maxima.data<float>(),
           sums.data<float>());
}

void cross_entropy_finish(const LogitRows& rows,
                          const Tensor& maxima,
                          const Tensor& sums,
                          double weight,
                          const Tensor& log_sum_exp,
                          const Tensor& counted,
                          const Tensor& loss) {
    constexpr const char* kOp = "cross_entropy_forward";
    const LaunchShape shape = finish_shape(kOp, rows.count());
    const Buffer parts(shape.grid.x * sizeof(Part), Device::kCuda);
    auto* const all = reinterpret_cast<Part*>(parts.data());
    launch(kOp, cross_entropy_loss_kernel, shape, rows_of(kOp, rows), maxima.data<float>(),
           sums.data<float>(), log_sum_exp.data<float>(), all);
    launch(kOp, cross_entropy_mean_kernel, {dim3(1), dim3(kFinishThreads)},
           static_cast<int>(shape.grid.x), all, weight, counted.data<std::int32_t>(),
           loss.data<double>());
}

void cross_entropy_gradient(const LogitRows& rows,
                            const Tensor& log_sum_exp,
                            const Tensor& counted,
                            double loss_scale,
                            const Tensor& dlogits) {
    constexpr const char* kOp = "cross_entropy_backward";
    dispatch(rows, dlogits, [&]<typename T, Chunks kChunks>(dim3 threads) {
        launch(
            kOp, cross_entropy_gradient_kernel<T, kChunks>, {grid_size(kOp, rows.count()), threads},
            rows_of(kOp, rows), log_sum_exp.data<float>(), counted.data<std::int32_t>(),
            static_cast<float>(loss_scale), reinterpret_cast<T*>(dlogits.raw()), dlogits.stride(0));
    });
}

}  // namespace evenkeel::cuda
