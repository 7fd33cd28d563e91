#include "attention/cpu/full_width_norm.h"

#include <cmath>

namespace evenkeel::cpu {

void finish_full_width(const Tensor& totals, const float (&factors)[2], float eps) {
    auto* x = totals.data<float>();
    const std::int64_t count = totals.numel(), half = count / 2;
    for (std::int64_t i = 0; i < count; ++i) {
        const float mean = x[i] * factors[i < half ? 0 : 1];
        x[i] = eps < 0.0f ? mean : 1.0f / std::sqrt(mean + eps);
    }
}

}  // namespace evenkeel::cpu
