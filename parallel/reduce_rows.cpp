#include "parallel/reduce_rows.h"

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// NaN wins.
EVENKEEL_INLINE Vec larger(Vec a, Vec b) { return (b > a) | (b != b) ? b : a; }

template <bool kMaximum, typename T>
void reduce(
    const void* const* sources, int num_sources, void* out, std::int64_t begin, std::int64_t end) {
    const auto source = [&](int s) { return static_cast<const T*>(sources[s]); };
    const auto combined = [&](auto&& read) {
        Vec value = read(source(0));
        for (int s = 1; s < num_sources; ++s) {
            const Vec next = read(source(s));
            value = kMaximum ? larger(value, next) : value + next;
        }
        return value;
    };
    T* to = static_cast<T*>(out);
    std::int64_t i = begin;
    if (num_sources == 2) {  // the loop over sources undone: two ranks are the usual case
        for (; i + kLanes <= end; i += kLanes) {
            const Vec a = load(source(0) + i), b = load(source(1) + i);
            store(to + i, kMaximum ? larger(a, b) : a + b);
        }
    }
    for (; i + kLanes <= end; i += kLanes) {
        store(to + i, combined([i](const T* from) { return load(from + i); }));
    }
    if (i < end) {
        const std::int64_t rest = end - i;
        store_partial(to + i, combined([=](const T* from) { return load_partial(from + i, rest); }),
                      rest);
    }
}

template <typename T>
void typed_reduce(bool maximum,
                  const void* const* sources,
                  int num_sources,
                  void* out,
                  std::int64_t begin,
                  std::int64_t end) {
    if (maximum) {
        reduce<true, T>(sources, num_sources, out, begin, end);
    } else {
        reduce<false, T>(sources, num_sources, out, begin, end);
    }
}

}  // namespace

void reduce_float_rows(bool bf16,
                       bool maximum,
                       const void* const* sources,
                       int num_sources,
                       void* out,
                       std::int64_t begin,
                       std::int64_t end) {
    if (bf16) {
        typed_reduce<std::uint16_t>(maximum, sources, num_sources, out, begin, end);
    } else {
        typed_reduce<float>(maximum, sources, num_sources, out, begin, end);
    }
}

}  // namespace evenkeel::EVENKEEL_ISA
