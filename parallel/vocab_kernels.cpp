#include "parallel/vocab_kernels.h"

#include <bit>

#define EVENKEEL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))

namespace evenkeel {
namespace {

constexpr int kLanes =
    16;  // independent partial results, so that reductions vectorise in one order

// exp for arguments up to 0 (and a little above): 2^n e^r with |r| <= ln2 / 2 and e^r by a polynomial of
// degree 6, about 1e-7 relative. Arguments below the least normal number give 0; NaN stays NaN.
inline __attribute__((always_inline)) float exp_nonpositive(float x) {
    constexpr float kLog2E = 1.44269504f;
    constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // their sum is ln 2
    constexpr float kLeast = -87.0f;
    const float clamped = x < kLeast ? kLeast : x;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    constexpr float kShift = 12582912.0f;
    const float shifted = clamped * kLog2E + kShift;
    const float n = shifted - kShift;
    const float r = (clamped - n * kLn2High) - n * kLn2Low;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const std::uint32_t power = (std::bit_cast<std::uint32_t>(shifted) + 127u) << 23;
    const float result = p * std::bit_cast<float>(power);
    return x < kLeast ? 0.0f : result;
}

// NaN wins.
inline __attribute__((always_inline)) float larger(float a, float b) {
    return b > a || b != b ? b : a;
}

}  // namespace

EVENKEEL_CLONES float row_max(const float* z, std::int64_t count) {
    float lanes[kLanes];
    for (float& lane : lanes) lane = z[0];
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = larger(lanes[lane], z[i + lane]);
    }
    float max = lanes[0];
    for (float lane : lanes) max = larger(max, lane);
    for (; i < count; ++i) max = larger(max, z[i]);
    return max;
}

EVENKEEL_CLONES float row_sum_exp(const float* z, float max, std::int64_t count) {
    float lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) {
            lanes[lane] += exp_nonpositive(z[i + lane] - max);
        }
    }
    float sum = 0.0f;
    for (float lane : lanes) sum += lane;
    for (; i < count; ++i) sum += exp_nonpositive(z[i] - max);
    return sum;
}

EVENKEEL_CLONES void row_softmax(
    const float* z, float log_sum_exp, float scale, float* out, std::int64_t count) {
#pragma GCC ivdep  // out may be z, but then element by element
    for (std::int64_t i = 0; i < count; ++i) {
        out[i] = exp_nonpositive(z[i] - log_sum_exp) * scale;
    }
}

}  // namespace evenkeel
