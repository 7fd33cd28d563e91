// What is done to gains between updates, the bits of model/ops/gain_rules.cpp: a CTA a key head and its query heads.
//
// Bytes: parameters and starts read, parameters written, once each, (H + K) D x 12, and as much again as half of the
// work is done in a cache; with H = 32, K = 8, D = 128 61 KB. Floor: a launch a layer.
#include "framework/cuda.h"
#include "model/cuda/gain_rules.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMostChannels = 256;

__global__ void __launch_bounds__(1)
    advance_anneal_kernel(float steps, float more, float* done, float* lambda) {
    const float count = fminf(*done + more, steps);
    *done = count;
    *lambda = count / steps;
}

__device__ __forceinline__ float gain_of(const GainLimits& limits, float parameter) {
    return __fadd_rn(limits.offset, __fdiv_rn(parameter, limits.unit));
}

__device__ __forceinline__ float pulled(float parameter, const float* start, float pull) {
    return start != nullptr ? fmaf(pull, __fsub_rn(*start, parameter), parameter) : parameter;
}

// The parameter of the same gain, or of one that is as large as it may be.
__device__ __forceinline__ float clamped(const GainLimits& limits, float parameter, float largest) {
    const float gain = gain_of(limits, parameter);
    if (!(fabsf(gain) > largest)) return parameter;
    const float none = __fmul_rn(-limits.offset, limits.unit);  // of a gain of 0
    float found = __fmul_rn(__fsub_rn(copysignf(largest, gain), limits.offset), limits.unit);
    for (int step = 0; step < 4 && fabsf(gain_of(limits, found)) > largest; ++step) {
        found = nextafterf(found, none);
    }
    return found;
}

__global__ void __launch_bounds__(kThreads) hold_gains_kernel(const GainLimits limits,
                                                              const float* q_start,
                                                              const float* k_start,
                                                              float* q,
                                                              float* k,
                                                              const int channels,
                                                              const int group) {
    __shared__ float of_key[kMostChannels];
    const std::int64_t head = blockIdx.x;
    for (int c = threadIdx.x; c < channels; c += kThreads) {
        const std::int64_t at = head * channels + c;
        const float parameter =
            pulled(k[at], k_start != nullptr ? k_start + at : nullptr, limits.pull);
        k[at] = parameter;
        of_key[c] = fabsf(gain_of(limits, parameter));
    }
    __syncthreads();
    const int rotary_dim = static_cast<int>(limits.rotary_dim), half = rotary_dim / 2;
    for (int i = threadIdx.x; i < group * channels; i += kThreads) {
        const int channel = i % channels;
        const bool turns = channel < rotary_dim;
        const int partner = !turns               ? channel
                            : limits.interleaved ? channel ^ 1
                            : channel < half     ? channel + half
                                                 : channel - half;
        // As std::max: the first one unless the second is larger.
        const float first = of_key[channel], second = of_key[partner];
        const float beside = first < second ? second : first;
        const std::int64_t at = head * group * channels + i;
        const float parameter =
            pulled(q[at], q_start != nullptr ? q_start + at : nullptr, limits.pull);
        q[at] =
            clamped(limits, parameter, __fdiv_rn(turns ? limits.turned : limits.unturned, beside));
    }
}

}  // namespace

void advance_anneal(float steps, bool advance, const Tensor& done, const Tensor& lambda) {
    launch("advance_anneal", advance_anneal_kernel, {.grid = dim3(1), .block = dim3(1)}, steps,
           advance ? 1.0f : 0.0f, done.data<float>(), lambda.data<float>());
}

void hold_gains(const GainLimits& limits,
                const float* q_start,
                const float* k_start,
                const Tensor& q,
                const Tensor& k) {
    const std::int64_t channels = k.size(1);
    EVENKEEL_CHECK(channels <= kMostChannels, "hold_gains", "head width: got ", channels,
                   ", want at most ", kMostChannels);
    launch("hold_gains", hold_gains_kernel,
           {.grid = grid_size("hold_gains", k.size(0)), .block = dim3(kThreads)}, limits, q_start,
           k_start, q.data<float>(), k.data<float>(), static_cast<int>(channels),
           static_cast<int>(q.size(0) / k.size(0)));
}

}  // namespace evenkeel::cuda
