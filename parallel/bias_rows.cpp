#include "parallel/bias_rows.h"

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// to[i] = a[i] + b[i]; to may be a or b.
template <typename To, typename A>
EVENKEEL_INLINE void add(To* to, const A* a, const float* b, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(to + i, load(a + i) + load(b + i));
    if (i == count) return;
    const std::int64_t left = count - i;
    store_partial(to + i, load_partial(a + i, left) + load_partial(b + i, left), left);
}

}  // namespace

void add_bias_row(bool bf16, void* x, const float* bias, std::int64_t count) {
    if (bf16) {
        auto* const row = static_cast<std::uint16_t*>(x);
        add(row, row, bias, count);
    } else {
        auto* const row = static_cast<float*>(x);
        add(row, row, bias, count);
    }
}

void add_row_to(bool bf16, const void* x, float* sums, std::int64_t count) {
    if (bf16) {
        add(sums, static_cast<const std::uint16_t*>(x), sums, count);
    } else {
        add(sums, static_cast<const float*>(x), sums, count);
    }
}

}  // namespace evenkeel::EVENKEEL_ISA
