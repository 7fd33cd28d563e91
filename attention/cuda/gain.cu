// Gains from their parameters and back. Bytes: parameter and gain, or dgain, parameter and
// dparameter, once each: N D x 4 and less, tens of kilobytes. Floor: the launches.
#include "attention/cuda/gain.h"
#include "framework/cuda.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float gain_of(const GainRule& rule, float parameter) {
    return rule.exponential ? expf(parameter > rule.largest ? rule.largest : parameter)
                            : rule.offset + parameter / rule.unit;
}

__global__ void __launch_bounds__(kThreads) effective_gain_kernel(const float* parameter,
                                                                  GainRule rule,
                                                                  float* gain,
                                                                  std::int64_t count,
                                                                  std::int64_t neighbours) {
    const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= count) return;
    float value = gain_of(rule, parameter[i / neighbours]);
    const float lambda = rule.lambda != nullptr ? *rule.lambda : 1.0f;
    // (A gain that is no number stays none, but for the power 0.)
    if (lambda < 1.0f) {
        value =
            lambda == 0.0f ? 1.0f : exp2f(lambda * log2f(value < kLeastGain ? kLeastGain : value));
    }
    gain[i] = value;
}

// Where each number of the parameter makes one gain, a thread for each; else a CTA for each.
__global__ void __launch_bounds__(kThreads) add_gain_gradient_kernel(const float* dgain,
                                                                     const float* parameter,
                                                                     GainRule rule,
                                                                     float* dparameter,
                                                                     std::int64_t count,
                                                                     std::int64_t neighbours) {
    const bool alone = neighbours == 1;
    const std::int64_t i =
        alone ? std::int64_t{blockIdx.x} * kThreads + threadIdx.x : std::int64_t{blockIdx.x};
    double sum = 0.0;
    if (alone) {
        if (i >= count) return;
        sum = dgain[i];
    } else {
        for (std::int64_t j = threadIdx.x; j < neighbours; j += kThreads) {
            sum += dgain[i * neighbours + j];
        }
        __shared__ double shared[kThreads];
        shared[threadIdx.x] = sum;
        // By halves: always the same tree.
        for (int half = kThreads / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        }
        if (threadIdx.x != 0) return;
        sum = shared[0];
    }
    const float value = parameter[i];
    float slope = !rule.exponential ? 1.0f / rule.unit : value > rule.largest ? 0.0f : expf(value);
    const float lambda = rule.lambda != nullptr ? *rule.lambda : 1.0f;
    if (lambda < 1.0f) {
        const float gain = gain_of(rule, value);
        slope *= gain < kLeastGain ? 0.0f : lambda * exp2f((lambda - 1.0f) * log2f(gain));
    }
    dparameter[i] = static_cast<float>(dparameter[i] + sum * slope);
}

}  // namespace

void effective_gain(const Tensor& parameter, const GainRule& rule, const Tensor& gain) {
    const std::int64_t count = gain.numel();
    launch("effective_gain", effective_gain_kernel,
           {.grid = grid_size("effective_gain", (count + kThreads - 1) / kThreads),
            .block = dim3(kThreads)},
           parameter.data<float>(), rule, gain.data<float>(), count, count / parameter.numel());
}

void add_gain_gradient(const Tensor& dgain,
                       const Tensor& parameter,
                       const GainRule& rule,
                       const Tensor& dparameter) {
    const std::int64_t count = parameter.numel(), neighbours = dgain.numel() / count;
    launch("add_gain_gradient", add_gain_gradient_kernel,
           {.grid = grid_size("add_gain_gradient",
                              neighbours == 1 ? (count + kThreads - 1) / kThreads : count),
            .block = dim3(kThreads)},
           dgain.data<float>(), parameter.data<float>(), rule, dparameter.data<float>(), count,
           neighbours);
}

}  // namespace evenkeel::cuda
