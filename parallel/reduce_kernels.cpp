#include "parallel/reduce_kernels.h"

#include <algorithm>
#include <bit>

#include "framework/error.h"

#define EVENKEEL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))

namespace evenkeel {
namespace {

constexpr std::int64_t kBlock = 2048;  // elements; the fp32 sums stay in the first-level cache
constexpr std::int64_t kParallelCount = 1 << 18;  // fewer elements are not worth waking threads for

inline float as_float(bfloat16 x) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
inline float as_float(float x) { return x; }

// bfloat16's rounding without its branch, so that loops vectorise.
inline void store(float x, bfloat16* out) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    out->bits =
        static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
}
inline void store(float x, float* out) { *out = x; }

// NaN wins.
template <typename T>
inline T larger(T a, T b) {
    return b > a || b != b ? b : a;
}

template <bool kMax, typename T>
inline __attribute__((always_inline)) void reduce_two(const T* a,
                                                      const T* b,
                                                      T* out,
                                                      std::int64_t n) {
#pragma GCC ivdep  // out may be a or b, but then element by element
    for (std::int64_t i = 0; i < n; ++i) {
        const float x = as_float(a[i]), y = as_float(b[i]);
        store(kMax ? larger(x, y) : x + y, out + i);
    }
}

template <bool kMax, typename T>
inline __attribute__((always_inline)) void reduce_many(
    const T* const* sources, int num_sources, T* out, std::int64_t begin, std::int64_t n) {
    float sum[kBlock];
    for (std::int64_t i = 0; i < n; ++i) sum[i] = as_float(sources[0][begin + i]);
    for (int s = 1; s < num_sources; ++s) {
        const T* source = sources[s] + begin;
        for (std::int64_t i = 0; i < n; ++i) {
            const float x = as_float(source[i]);
            sum[i] = kMax ? larger(sum[i], x) : sum[i] + x;
        }
    }
    for (std::int64_t i = 0; i < n; ++i) store(sum[i], out + begin + i);
}

template <bool kMax, typename T>
inline __attribute__((always_inline)) void reduce_floats(
    const T* const* sources, int num_sources, T* out, std::int64_t begin, std::int64_t n) {
    if (num_sources == 2) {
        reduce_two<kMax>(sources[0] + begin, sources[1] + begin, out + begin, n);
    } else {
        reduce_many<kMax>(sources, num_sources, out, begin, n);
    }
}

EVENKEEL_CLONES void sum_block(
    const bfloat16* const* s, int k, bfloat16* out, std::int64_t b, std::int64_t n) {
    reduce_floats<false>(s, k, out, b, n);
}
EVENKEEL_CLONES void max_block(
    const bfloat16* const* s, int k, bfloat16* out, std::int64_t b, std::int64_t n) {
    reduce_floats<true>(s, k, out, b, n);
}
EVENKEEL_CLONES void sum_block(
    const float* const* s, int k, float* out, std::int64_t b, std::int64_t n) {
    reduce_floats<false>(s, k, out, b, n);
}
EVENKEEL_CLONES void max_block(
    const float* const* s, int k, float* out, std::int64_t b, std::int64_t n) {
    reduce_floats<true>(s, k, out, b, n);
}

// Types that are their own accumulator.
template <typename T>
void reduce_plain(ReduceOp op,
                  const T* const* sources,
                  int num_sources,
                  T* out,
                  std::int64_t begin,
                  std::int64_t n) {
    for (std::int64_t i = begin; i < begin + n; ++i) {
        T value = sources[0][i];
        for (int s = 1; s < num_sources; ++s) {
            value = op == ReduceOp::kSum ? value + sources[s][i] : larger(value, sources[s][i]);
        }
        out[i] = value;
    }
}

template <typename T, typename F>
void over_blocks(const std::byte* const* sources, std::byte* out, std::int64_t count, F&& reduce) {
    const auto* typed_sources = reinterpret_cast<const T* const*>(sources);
    auto* typed_out = reinterpret_cast<T*>(out);
    const std::int64_t blocks = (count + kBlock - 1) / kBlock;
#pragma omp parallel for if (count >= kParallelCount)
    for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t begin = block * kBlock;
        reduce(typed_sources, typed_out, begin, std::min(kBlock, count - begin));
    }
}

}  // namespace

void reduce_blocks(DType dtype,
                   ReduceOp op,
                   const std::byte* const* sources,
                   int num_sources,
                   std::byte* out,
                   std::int64_t count) {
    const auto floats = [&](auto* s, auto* o, std::int64_t begin, std::int64_t n) {
        op == ReduceOp::kSum ? sum_block(s, num_sources, o, begin, n)
                             : max_block(s, num_sources, o, begin, n);
    };
    switch (dtype) {
        case DType::kFloat32:
            return over_blocks<float>(sources, out, count, floats);
        case DType::kBFloat16:
            return over_blocks<bfloat16>(sources, out, count, floats);
        case DType::kInt32:
            return over_blocks<std::int32_t>(
                sources, out, count, [&](auto* s, auto* o, std::int64_t begin, std::int64_t n) {
                    reduce_plain(op, s, num_sources, o, begin, n);
                });
    }
}

void reduce_doubles(
    ReduceOp op, const double* const* sources, int num_sources, double* out, std::int64_t count) {
    reduce_plain(op, sources, num_sources, out, 0, count);
}

}  // namespace evenkeel
