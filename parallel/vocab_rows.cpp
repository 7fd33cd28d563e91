#include "parallel/vocab_rows.h"

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// e^x for x up to 0 and a little above; exactly 0 where the result would be subnormal. NaN stays NaN.
EVENKEEL_INLINE Vec exp_or_zero(Vec x) { return x < -87.0f ? Vec{} : exp(x); }

EVENKEEL_INLINE float minus_infinity(const float*) { return -__builtin_inff(); }
EVENKEEL_INLINE std::uint16_t minus_infinity(const std::uint16_t*) { return 0xff80; }

// What is left of a row, filled up with minus infinity.
template <typename T>
EVENKEEL_INLINE Vec load_tail(const T* from, std::int64_t count) {
    T lanes[kLanes];
    for (T& lane : lanes) lane = minus_infinity(from);
    __builtin_memcpy(lanes, from, static_cast<std::size_t>(count) * sizeof(T));
    return load(lanes);
}

// Calls f on each vector of the row, the last one filled up with minus infinity.
template <typename T, typename F>
EVENKEEL_INLINE void for_each_vector(const T* z, std::int64_t count, F&& f) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) f(load(z + i));
    if (i < count) f(load_tail(z + i, count - i));
}

// NaN wins.
EVENKEEL_INLINE Vec larger(Vec a, Vec b) { return (b > a) | (b != b) ? b : a; }

template <typename T>
float typed_max(const T* z, std::int64_t count) {
    Vec max = broadcast(-__builtin_inff());
    for_each_vector(z, count, [&](Vec v) { max = larger(max, v); });
    float result = max[0];
    for (int lane = 1; lane < kLanes; ++lane) {
        if (max[lane] > result || max[lane] != max[lane]) result = max[lane];
    }
    return result;
}

template <typename T>
float typed_sum_exp(const T* z, float max, std::int64_t count) {
    Vec sums{};
    for_each_vector(z, count, [&](Vec v) { sums += exp_or_zero(v - max); });
    return sum(sums);
}

template <typename T>
void typed_gradient(
    const T* z, float log_sum_exp, std::int64_t target, float scale, T* dz, std::int64_t count) {
    const float target_logit = target < 0 ? 0.0f : load_tail(z + target, 1)[0];
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        store(dz + i, exp_or_zero(load(z + i) - log_sum_exp) * scale);
    }
    if (i < count) {
        const Vec v = load_tail(z + i, count - i);
        store_partial(dz + i, exp_or_zero(v - log_sum_exp) * scale, count - i);
    }
    if (target >= 0) {
        const Vec p = exp_or_zero(broadcast(target_logit) - log_sum_exp);
        store_partial(dz + target, (p - 1.0f) * scale, 1);
    }
}

}  // namespace

float row_max(bool bf16, const void* z, std::int64_t count) {
    return bf16 ? typed_max(static_cast<const std::uint16_t*>(z), count)
                : typed_max(static_cast<const float*>(z), count);
}

float row_sum_exp(bool bf16, const void* z, float max, std::int64_t count) {
    return bf16 ? typed_sum_exp(static_cast<const std::uint16_t*>(z), max, count)
                : typed_sum_exp(static_cast<const float*>(z), max, count);
}

void row_softmax_gradient(bool bf16,
                          const void* z,
                          float log_sum_exp,
                          std::int64_t target,
                          float scale,
                          void* dz,
                          std::int64_t count) {
    if (bf16) {
        typed_gradient(static_cast<const std::uint16_t*>(z), log_sum_exp, target, scale,
                       static_cast<std::uint16_t*>(dz), count);
    } else {
        typed_gradient(static_cast<const float*>(z), log_sum_exp, target, scale,
                       static_cast<float*>(dz), count);
    }
}

}  // namespace evenkeel::EVENKEEL_ISA
