// Look-up in an embedding and its gradient.
//
// Forward copies rows as they are, 16 bytes a thread: N C elements read and written. N = 16384, C = 4096,
// bf16: 268.4 MB; floor A100 (2.04 TB/s) 132 us, H200 (4.8 TB/s) 56 us.
//
// Backward adds the rows of equal tokens in the order of tokens, with no atomics. The keys (row, position),
// all different, are sorted: tiles of 2048 in shared memory (a bitonic network, Batcher 1968), then every
// key finds how many of each other tile are less by bisection. That takes N^2 / 2048 * 11 reads from L2,
// less than the gradient itself up to N = 2^18. A CTA then adds up each run of equal rows, its threads
// 16 bytes of columns each.
//   Bytes: dy read once; of each of U different tokens the fp32 gradient read and written: N = 16384,
//   C = 4096, bf16, U = 4000: 134.2 + 131.1 MB = 265.3 MB; floor 130 us, 55 us. Keys: 8 N bytes, a few times.
//   A token that fills the batch is added up by C / 8 threads alone, 4 rows in flight: about N / 4 times
//   the latency of memory.
#include <algorithm>

#include "framework/buffer.h"
#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "framework/error.h"
#include "parallel/vocab_backends.h"

namespace evenkeel::cuda {
namespace {

// ---- Forward

constexpr int kCopyThreads = 256;

// Which row of this rank's part a token has.
struct Table {
    std::int64_t begin = 0, rows = 0;  // of the vocabulary, on this rank
    std::int64_t vocab_size = 0;
};

template <typename Unit>
__device__ Unit all_ones();  // NaN in both types
template <>
__device__ uint4 all_ones<uint4>() {
    return {~0u, ~0u, ~0u, ~0u};
}
template <>
__device__ std::uint16_t all_ones<std::uint16_t>() {
    return 0xffff;
}

// A unit is 16 bytes, or 2 where rows do not begin at multiples of 16.
template <typename Unit>
__global__ void __launch_bounds__(kCopyThreads) embedding_forward_kernel(const Table table,
                                                                         const std::int32_t* tokens,
                                                                         const Unit* weight,
                                                                         const std::int64_t units,
                                                                         const std::int64_t total,
                                                                         Unit* y) {
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
    if (at >= total) return;
    const std::int64_t i = divide(at, units);
    const std::int64_t token = tokens[i], row = token - table.begin;
    Unit value{};
    if (row >= 0 && row < table.rows) value = weight[row * units + (at - i * units)];
    if (token < 0 || token >= table.vocab_size) value = all_ones<Unit>();
    y[at] = value;
}

// ---- Backward

constexpr int kTile = 2048;  // keys
constexpr int kSortThreads = 512;
constexpr int kRankThreads = 256;
constexpr int kSumThreads = 128;

using Key = unsigned long long;  // row << 32 | position
constexpr std::uint32_t kElsewhere = 0xffffffffu;

__device__ __forceinline__ std::uint32_t row_of(Key key) {
    return static_cast<std::uint32_t>(key >> 32);
}
__device__ __forceinline__ std::uint32_t position_of(Key key) {
    return static_cast<std::uint32_t>(key);
}

// Sorts one tile. `size` is the power of two that holds the largest tile; keys above all others fill up.
__global__ void __launch_bounds__(kSortThreads) sort_tokens_kernel(
    const Table table, const std::int32_t* tokens, int count, int size, Key* keys) {
    __shared__ Key tile[kTile];
    const int begin = static_cast<int>(blockIdx.x) * kTile;
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < size; i += kSortThreads) {
        Key key = ~Key{0};
        if (begin + i < count) {
            const std::int64_t row = tokens[begin + i] - table.begin;
            const bool here = row >= 0 && row < table.rows;
            key = static_cast<Key>(here ? static_cast<std::uint32_t>(row) : kElsewhere) << 32 |
                  static_cast<std::uint32_t>(begin + i);
        }
        tile[i] = key;
    }
    for (int run = 2; run <= size; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int pair = thread; pair < size / 2; pair += kSortThreads) {
                const int low = 2 * pair - (pair & (step - 1));
                const Key a = tile[low], b = tile[low + step];
                const bool ascending = (low & run) == 0;
                if ((a > b) == ascending) tile[low] = b, tile[low + step] = a;
            }
        }
    }
    __syncthreads();
    for (int i = thread; i < size && begin + i < count; i += kSortThreads) {
        keys[begin + i] = tile[i];
    }
}

// Puts every key of the sorted tiles in its place among all.
__global__ void __launch_bounds__(kRankThreads)
    merge_tokens_kernel(const Key* tiles, int count, Key* keys) {
    const int at = static_cast<int>(blockIdx.x) * kRankThreads + static_cast<int>(threadIdx.x);
    if (at >= count) return;
    const Key key = tiles[at];
    const int own = at / kTile * kTile;
    int place = at - own;
    for (int begin = 0; begin < count; begin += kTile) {
        if (begin == own) continue;
        int low = begin,
            high = min(count - begin, kTile) + begin;  // the first not less lies between
        while (low < high) {
            const int middle = low + (high - low) / 2;
            if (tiles[middle] < key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        place += low - begin;
    }
    keys[place] = key;
}

// The CTA of a run's first key adds up the run.
template <typename T>
__global__ void __launch_bounds__(kSumThreads) embedding_backward_kernel(const Key* keys,
                                                                         const int count,
                                                                         const T* dy,
                                                                         const std::int64_t width,
                                                                         const bool aligned,
                                                                         float* grad) {
    constexpr int kRows = 4;  // in flight
    const int first = static_cast<int>(blockIdx.x);
    const std::uint32_t row = row_of(keys[first]);
    if (row == kElsewhere || (first > 0 && row_of(keys[first - 1]) == row)) return;
    const std::int64_t at =
        (static_cast<std::int64_t>(blockIdx.y) * kSumThreads + threadIdx.x) * kChunk<T>;
    if (at >= width) return;
    const int size = chunk_size<T>(width, at);
    float* to = grad + row * width + at;
    float sums[kChunk<T>];
    load_floats(to, size, sums, aligned);
    for (int begin = first; begin < count; begin += kRows) {
        uint4 packed[kRows];
        bool same[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const Key key = begin + i < count ? keys[begin + i] : ~Key{0};
            same[i] = row_of(key) == row;
            packed[i] =
                load_packed(dy + position_of(key) * width + at, same[i] ? size : 0, aligned);
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            if (!same[i]) break;
            float values[kChunk<T>];
            unpack<T>(packed[i], values);
#pragma unroll
            for (int c = 0; c < kChunk<T>; ++c) sums[c] += values[c];
        }
        if (!same[kRows - 1]) break;
    }
    store_floats(to, size, sums, aligned);
}

}  // namespace

void embedding_forward(const Tensor& tokens,
                       const Tensor& weight,
                       std::int64_t begin,
                       std::int64_t vocab_size,
                       const Tensor& y) {
    constexpr const char* kOp = "embedding_forward";
    const Table table{begin, weight.size(0), vocab_size};
    const std::int64_t width = weight.size(1);
    const std::size_t element = size_of(weight.dtype());
    const auto copy = [&]<typename Unit>() {
        const std::int64_t units =
            width * static_cast<std::int64_t>(element) / static_cast<std::int64_t>(sizeof(Unit));
        const std::int64_t total = units * tokens.numel();
        launch(kOp, embedding_forward_kernel<Unit>,
               {grid_size(kOp, (total + kCopyThreads - 1) / kCopyThreads), dim3(kCopyThreads)},
               table, tokens.data<std::int32_t>(), reinterpret_cast<const Unit*>(weight.raw()),
               units, total, reinterpret_cast<Unit*>(y.raw()));
    };
    if (takes_chunks(weight.raw(), width, element) && takes_chunks(y.raw(), width, element)) {
        copy.template operator()<uint4>();
    } else {
        copy.template operator()<std::uint16_t>();
    }
}

void embedding_backward(const Tensor& dy,
                        const Tensor& tokens,
                        std::int64_t begin,
                        const Tensor& grad) {
    constexpr const char* kOp = "embedding_backward";
    const int count = static_cast<int>(tokens.numel()), tiles = (count + kTile - 1) / kTile;
    const std::int64_t width = dy.size(1);
    EVENKEEL_CHECK(grad.size(0) < kElsewhere, kOp, "rows: got ", grad.size(0),
                   ", want fewer than 2^32 - 1");
    EVENKEEL_CHECK(count <= INT32_MAX - kTile, kOp, "tokens: got ", count,
                   ", want fewer than 2^31 - ", kTile);
    const Table table{begin, grad.size(0), 0};
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Key);
    const Buffer tiled(bytes, Device::kCuda), merged(tiles > 1 ? bytes : 0, Device::kCuda);
    int size = 2;
    while (size < std::min(count, kTile)) size *= 2;
    auto* keys = reinterpret_cast<Key*>(tiled.data());
    launch(kOp, sort_tokens_kernel, {grid_size(kOp, tiles), dim3(kSortThreads)}, table,
           tokens.data<std::int32_t>(), count, size, keys);
    if (tiles > 1) {
        auto* const all = reinterpret_cast<Key*>(merged.data());
        launch(kOp, merge_tokens_kernel,
               {grid_size(kOp, (count + kRankThreads - 1) / kRankThreads), dim3(kRankThreads)},
               keys, count, all);
        keys = all;
    }
    for_storage_type(dy.dtype(), [&]<typename T>() {
        const bool aligned = takes_chunks(dy.raw(), width, sizeof(T)) &&
                             takes_chunks(grad.raw(), width, sizeof(float));
        constexpr std::int64_t kColumns = kSumThreads * kChunk<T>;
        launch(kOp, embedding_backward_kernel<T>,
               {grid_size(kOp, count, (width + kColumns - 1) / kColumns), dim3(kSumThreads)}, keys,
               count, reinterpret_cast<const T*>(dy.raw()), width, aligned, grad.data<float>());
    });
}

}  // namespace evenkeel::cuda
