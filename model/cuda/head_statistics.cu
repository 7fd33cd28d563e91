// What telemetry adds to a pass, and the norms of heads' weights.
//
// head_rows_kernel reads the number of each row of q and k (a few bytes a row, of the norm that was made
// or of token_dots) and leaves a sum and a minimum for each head and chunk of rows; head_statistics_kernel
// adds the chunks, in order, and the attention kernel's numbers to the totals. Floor: 4 bytes read a row
// and head, so two launches. Static shared memory: 2 KiB.
//
// head_squares_kernel reads a weight once, 4 bytes an element: once a record, not in a pass.
#include <algorithm>

#include "framework/cuda.h"
#include "model/cuda/head_statistics.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32, kLanes = kThreads / kColumns;  // of a block: heads, rows side by side
constexpr std::int64_t kChunkRows = 64, kMostChunks = 128;

// q or k.
struct Rows {
    const float* values;  // [rows, columns]
    float *sums, *least;  // [chunks, columns]
    std::int64_t columns;
    float factor, offset;
    bool inverse;
};
struct BothRows {
    Rows q, k;
};

__device__ inline float smaller(float a, float b) {
    // NaN is kept.
    return !(b >= a) && a == a ? b : a;
}
__device__ inline float larger(float a, float b) { return !(b <= a) && a == a ? b : a; }

__global__ void __launch_bounds__(kThreads)
    head_rows_kernel(const BothRows both, const std::int64_t rows, const std::int64_t chunk_rows) {
    __shared__ float sums[kLanes][kColumns], leasts[kLanes][kColumns];
    const Rows part = blockIdx.z == 0 ? both.q : both.k;
    const int x = static_cast<int>(threadIdx.x) % kColumns;
    const int lane = static_cast<int>(threadIdx.x) / kColumns;
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + x;
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * chunk_rows;
    const std::int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
    float sum = 0.0f, least = __int_as_float(0x7f800000);
    if (column < part.columns) {
        for (std::int64_t row = begin + lane; row < end; row += kLanes) {
            const float value = part.values[row * part.columns + column];
            const float g = part.inverse ? 1.0f / (value * value) : value;
            const float square = part.factor * g - part.offset;
            const float rms = sqrtf(square < 0.0f ? 0.0f : square);
            sum += rms;
            least = smaller(least, rms);
        }
    }
    sums[lane][x] = sum;
    leasts[lane][x] = least;
    __syncthreads();
    if (lane != 0 || column >= part.columns) return;
    for (int other = 1; other < kLanes; ++other) {
        sum += sums[other][x];
        least = smaller(least, leasts[other][x]);
    }
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.y) * part.columns + column;
    part.sums[at] = sum;
    part.least[at] = least;
}

// Heads of q come first, those of k behind them. A plane of totals has `stride` elements.
struct Totals {
    float *max, *sum;
    std::int64_t heads, stride;
};
struct HeadNumbers {
    const float *max_logit, *uncapped, *entropy, *share, *saturation;
};

__device__ inline void add_rows(
    const Rows& part, std::int64_t chunks, std::int64_t head, float* most, float* total) {
    const std::int64_t column = part.columns == 1 ? 0 : head;
    float sum = 0.0f, least = __int_as_float(0x7f800000);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        sum += part.sums[chunk * part.columns + column];
        least = smaller(least, part.least[chunk * part.columns + column]);
    }
    *most = larger(*most, -least);
    *total += sum;
}

__global__ void __launch_bounds__(kThreads) head_statistics_kernel(const HeadNumbers numbers,
                                                                   const BothRows both,
                                                                   const std::int64_t chunks,
                                                                   const float rows,
                                                                   const Totals q,
                                                                   const Totals k) {
    std::int64_t head = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (head >= q.heads) {
        head -= q.heads;
        if (head < k.heads) add_rows(both.k, chunks, head, k.max + head, k.sum + head);
        return;
    }
    float* const max = q.max + head;
    float* const sum = q.sum + head;
    max[kMaxLogitPlane * q.stride] =
        larger(max[kMaxLogitPlane * q.stride], numbers.max_logit[head]);
    max[kUncappedPlane * q.stride] = larger(max[kUncappedPlane * q.stride], numbers.uncapped[head]);
    sum[kEntropyPlane * q.stride] += numbers.entropy[head] * rows;
    sum[kSharePlane * q.stride] += numbers.share[head] * rows;
    sum[kSaturationPlane * q.stride] += numbers.saturation[head] * rows;
    add_rows(both.q, chunks, head, max + kLeastQueryPlane * q.stride, sum + kQueryPlane * q.stride);
}

// Part blockIdx.x of head blockIdx.y: `length` elements.
__global__ void __launch_bounds__(kThreads)
    head_squares_kernel(const float* weight, const std::int64_t length, double* squares) {
    __shared__ double sums[kThreads];
    const std::int64_t part = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    const float* const values = weight + part * length;
    double sum = 0.0;
    for (std::int64_t i = threadIdx.x; i < length; i += kThreads) {
        const double wide = values[i];
        sum = __fma_rn(wide, wide, sum);
    }
    sums[threadIdx.x] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) {
            sums[threadIdx.x] = __dadd_rn(sums[threadIdx.x], sums[threadIdx.x + half]);
        }
    }
    if (threadIdx.x == 0) squares[part] = sums[0];
}

}  // namespace

void add_head_statistics(const LayerHeads& in, const LayerPlanes& planes) {
    constexpr const char* kOp = "HeadStatistics::add";
    const std::int64_t rows = in.q.values.size(0);
    const std::int64_t wanted = (rows + kChunkRows - 1) / kChunkRows;
    const std::int64_t chunk_rows =
        (rows + std::min(wanted, kMostChunks) - 1) / std::min(wanted, kMostChunks);
    const std::int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    BothRows both;
    Tensor partials[2];
    std::int64_t most_columns = 0;
    for (int i = 0; i < 2; ++i) {
        const RowStatistic& from = i == 0 ? in.q : in.k;
        const std::int64_t columns = from.values.size(1);
        partials[i] = Tensor::uninitialized({2, chunks, columns}, DType::kFloat32, Device::kCuda);
        (i == 0 ? both.q : both.k) = {from.values.data<float>(),
                                      partials[i].data<float>(),
                                      partials[i].data<float>() + chunks * columns,
                                      columns,
                                      static_cast<float>(from.factor),
                                      static_cast<float>(from.offset),
                                      from.inverse};
        most_columns = std::max(most_columns, columns);
    }
    launch(kOp, head_rows_kernel,
           {grid_size(kOp, (most_columns + kColumns - 1) / kColumns, chunks, 2), dim3(kThreads)},
           both, rows, chunk_rows);

    const AttentionStats& stats = in.stats;
    const HeadNumbers numbers{stats.max_logit.data<float>(), stats.max_logit_uncapped.data<float>(),
                              stats.entropy.data<float>(), stats.entropy_share.data<float>(),
                              stats.saturation.data<float>()};
    const Totals q{planes.q_max.data<float>(), planes.q_sum.data<float>(), planes.q_max.size(1),
                   planes.q_max.stride(0)};
    const Totals k{planes.k_max.data<float>(), planes.k_sum.data<float>(), planes.k_max.size(1),
                   planes.k_max.stride(0)};
    launch(kOp, head_statistics_kernel,
           {grid_size(kOp, (q.heads + k.heads + kThreads - 1) / kThreads), dim3(kThreads)}, numbers,
           both, chunks, static_cast<float>(in.rows), q, k);
}

void head_squares(const Tensor& weight, const Tensor& squares) {
    constexpr const char* kOp = "head_weight_tables";
    launch(kOp, head_squares_kernel,
           {grid_size(kOp, squares.size(1), squares.size(0)), dim3(kThreads)}, weight.data<float>(),
           weight.numel() / squares.numel(), squares.data<double>());
}

}  // namespace evenkeel::cuda
