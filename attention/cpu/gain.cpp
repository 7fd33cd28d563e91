// A few thousand numbers a step: one thread.
#include "attention/cpu/gain.h"

#include <cmath>

namespace evenkeel::cpu {

namespace {

template <typename Real>
Real gain_of(const GainRule& rule, float parameter) {
    const Real value = parameter;
    if (rule.exponential) return std::exp(value > rule.largest ? Real{rule.largest} : value);
    return rule.offset + value / rule.unit;
}

}  // namespace

void effective_gain(const Tensor& parameter, const GainRule& rule, const Tensor& gain) {
    const float lambda = rule.lambda != nullptr ? *rule.lambda : 1.0f;
    const std::int64_t neighbours = gain.numel() / parameter.numel();
    const float* from = parameter.data<float>();
    float* to = gain.data<float>();
    for (std::int64_t i = 0; i < gain.numel(); ++i) {
        to[i] = gain_of<float>(rule, from[i / neighbours]);
        // (A gain that is no number stays none, but for the power 0.)
        if (lambda < 1.0f) to[i] = std::pow(to[i] < kLeastGain ? kLeastGain : to[i], lambda);
    }
}

void add_gain_gradient(const Tensor& dgain,
                       const Tensor& parameter,
                       const GainRule& rule,
                       const Tensor& dparameter) {
    const std::int64_t neighbours = dgain.numel() / parameter.numel();
    const double lambda = rule.lambda != nullptr ? *rule.lambda : 1.0;
    const float* from = dgain.data<float>();
    for (std::int64_t i = 0; i < parameter.numel(); ++i) {
        double sum = 0.0;
        for (std::int64_t j = 0; j < neighbours; ++j) sum += from[i * neighbours + j];
        const float value = parameter.data<float>()[i];
        double slope = !rule.exponential      ? 1.0 / static_cast<double>(rule.unit)
                       : value > rule.largest ? 0.0
                                              : std::exp(static_cast<double>(value));
        if (lambda < 1.0) {
            const auto gain = gain_of<double>(rule, value);
            slope *= gain < kLeastGain ? 0.0 : lambda * std::pow(gain, lambda - 1.0);
        }
        float& to = dparameter.data<float>()[i];
        to = static_cast<float>(to + sum * slope);
    }
}

}  // namespace evenkeel::cpu
