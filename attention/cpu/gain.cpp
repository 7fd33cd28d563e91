// A few thousand numbers a step: one thread.
#include "attention/cpu/gain.h"

#include <cmath>

namespace evenkeel::cpu {

void effective_gain(const Tensor& parameter, const GainRule& rule, const Tensor& gain) {
    const std::int64_t neighbours = gain.numel() / parameter.numel();
    const float* from = parameter.data<float>();
    float* to = gain.data<float>();
    for (std::int64_t i = 0; i < gain.numel(); ++i) {
        const float value = from[i / neighbours];
        to[i] = rule.exponential ? std::exp(value > rule.largest ? rule.largest : value)
                                 : rule.offset + value / rule.unit;
    }
}

void add_gain_gradient(const Tensor& dgain,
                       const Tensor& parameter,
                       const GainRule& rule,
                       const Tensor& dparameter) {
    const std::int64_t neighbours = dgain.numel() / parameter.numel();
    const float* from = dgain.data<float>();
    for (std::int64_t i = 0; i < parameter.numel(); ++i) {
        double sum = 0.0;
        for (std::int64_t j = 0; j < neighbours; ++j) sum += from[i * neighbours + j];
        const float value = parameter.data<float>()[i];
        const double slope = !rule.exponential      ? 1.0 / static_cast<double>(rule.unit)
                             : value > rule.largest ? 0.0
                                                    : std::exp(static_cast<double>(value));
        float& to = dparameter.data<float>()[i];
        to = static_cast<float>(to + sum * slope);
    }
}

}  // namespace evenkeel::cpu
