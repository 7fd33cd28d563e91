#include "framework/optimizer/adamw.h"

#include <cmath>

#include "framework/optimizer/adamw_cpu.h"
#include "framework/optimizer/adamw_cuda.h"

namespace evenkeel {

void AdamWConfig::visit_fields(ConfigVisitor& v) {
    v.field("beta1", beta1, "decay of the mean of gradients");
    v.field("beta2", beta2, "decay of the mean of squared gradients");
    v.field("epsilon", epsilon, "added to the root of the second moment");
    v.field("weight_decay", weight_decay, "decoupled decay, multiplied by the learning rate");
}

void AdamWConfig::validate() const {
    const auto check = [](bool condition, const char* name, double got, const char* want) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kConfig, "config", "optimizer.", name, ": got ",
                            got, ", want ", want);
    };
    check(beta1 >= 0.0 && beta1 < 1.0, "beta1", beta1, "a number in [0, 1)");
    check(beta2 >= 0.0 && beta2 < 1.0, "beta2", beta2, "a number in [0, 1)");
    check(std::isfinite(epsilon) && epsilon > 0.0, "epsilon", epsilon, "a positive number");
    check(std::isfinite(weight_decay) && weight_decay >= 0.0, "weight_decay", weight_decay,
          "0 or more");
}

bool makes_update(double loss, double grad_norm, const UpdateLimits& limits) {
    return std::isfinite(loss) && std::isfinite(grad_norm) && loss <= limits.loss &&
           grad_norm <= limits.grad_norm;
}

void adamw_step(const ParameterBuckets& buckets,
                const AdamWConfig& config,
                double lr,
                double clip_norm,
                const Tensor& numbers,
                std::int64_t step,
                UpdateScope scope,
                const UpdateLimits& limits) {
    constexpr const char* kOp = "adamw_step";
    config.validate();
    EVENKEEL_CHECK(step >= 1, kOp, "step: got ", step, ", want 1 or more");
    EVENKEEL_CHECK(clip_norm >= 0.0, kOp, "clip_norm: got ", clip_norm, ", want 0 or more");
    check_shape(kOp, "numbers", numbers, {2});
    check_dtype(kOp, "numbers", numbers, DType::kFloat64);
    EVENKEEL_CHECK(numbers.device() == buckets.device(), kOp, "numbers: got a tensor on ",
                   name_of(numbers.device()), ", want ", name_of(buckets.device()));

    const auto t = static_cast<double>(step);
    AdamWScalars s;
    s.beta1 = static_cast<float>(config.beta1);
    s.one_minus_beta1 = static_cast<float>(1.0 - config.beta1);
    s.beta2 = static_cast<float>(config.beta2);
    s.one_minus_beta2 = static_cast<float>(1.0 - config.beta2);
    s.step_size = static_cast<float>(lr / (1.0 - std::pow(config.beta1, t)));
    s.root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(config.beta2, t)));
    s.epsilon = static_cast<float>(config.epsilon);
    s.decay = static_cast<float>(lr * config.weight_decay);
    const bool first_phase = scope == UpdateScope::kFirstPhase;
    s.wanted = first_phase ? std::uint32_t{ParameterChunk::kFirstPhase} : 0;
    switch (buckets.device()) {
        case Device::kCpu: {
            const double loss = numbers.data<double>()[kLossIndex];
            const double norm = std::sqrt(numbers.data<double>()[kSquaredNormIndex]);
            if (!makes_update(loss, norm, limits)) return;
            const bool clip = clip_norm > 0.0 && norm > clip_norm;
            return cpu::adamw_step(buckets, s, static_cast<float>(clip ? clip_norm / norm : 1.0));
        }
        case Device::kCuda:
            return cuda::adamw_step(buckets, s, clip_norm, limits, numbers);
    }
}

}  // namespace evenkeel
