#include "parallel/reduce_kernels.h"

#include <algorithm>

#include "parallel/reduce_rows.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kBlock = 1 << 14;          // elements that a thread takes at a time
constexpr std::int64_t kParallelCount = 1 << 18;  // fewer elements are not worth waking threads for

// Types that are their own accumulator.
template <typename T>
void reduce_plain(
    ReduceOp op, const T* const* sources, int num_sources, T* out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        T value = sources[0][i];
        for (int s = 1; s < num_sources; ++s) {
            const T next = sources[s][i];
            if (op != ReduceOp::kMax) {
                value += next;
            } else if (next > value || next != next) {  // NaN wins
                value = next;
            }
        }
        out[i] = value;
    }
}

template <typename T>
void scale(T* values, int num_sources, std::int64_t count) {
    const T factor = T{1} / static_cast<T>(num_sources);
    for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

}  // namespace

void reduce_blocks(DType dtype,
                   ReduceOp op,
                   const std::byte* const* sources,
                   int num_sources,
                   std::byte* out,
                   std::int64_t count) {
    if (dtype == DType::kInt32) {
        return reduce_plain(op, reinterpret_cast<const std::int32_t* const*>(sources), num_sources,
                            reinterpret_cast<std::int32_t*>(out), count);
    }
    if (dtype == DType::kFloat64) {
        return reduce_doubles(op, reinterpret_cast<const double* const*>(sources), num_sources,
                              reinterpret_cast<double*>(out), count);
    }
    const auto rows = EVENKEEL_FOR_CURRENT_ISA(reduce_float_rows);
    const auto* pointers = reinterpret_cast<const void* const*>(sources);
    const std::int64_t blocks = (count + kBlock - 1) / kBlock;
#pragma omp parallel for if (count >= kParallelCount)
    for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t begin = block * kBlock, end = std::min(count, begin + kBlock);
        rows(dtype == DType::kBFloat16, op == ReduceOp::kMax, pointers, num_sources, out, begin,
             end);
        if (op == ReduceOp::kMean) {
            scale(reinterpret_cast<float*>(out) + begin, num_sources, end - begin);
        }
    }
}

void reduce_doubles(
    ReduceOp op, const double* const* sources, int num_sources, double* out, std::int64_t count) {
    reduce_plain(op, sources, num_sources, out, count);
    if (op == ReduceOp::kMean) scale(out, num_sources, count);
}

}  // namespace evenkeel
