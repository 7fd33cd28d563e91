#include "framework/adamw.h"

#include <cmath>

#include "framework/adamw_cpu.h"

namespace evenkeel {
namespace {

void check_state(const Parameter& parameter, const char* what, const Tensor& tensor) {
    const std::string name = parameter.name + "'s " + what;
    check_shape("adamw_step", name.c_str(), tensor, parameter.local_shape());
    EVENKEEL_CHECK_CODE(tensor.device() == Device::kCpu, ErrorCode::kNotBuilt, "adamw_step", name,
                        ": device: got cuda, want cpu");
    EVENKEEL_CHECK(tensor.is_contiguous(), "adamw_step", name, ": got strides ",
                   to_string(tensor.strides()), ", want a contiguous tensor");
}

void check_parameter(const Parameter& parameter) {
    check_state(parameter, "value", parameter.value);
    check_state(parameter, "master", parameter.master);
    check_state(parameter, "gradient", parameter.grad);
    check_state(parameter, "first moment", parameter.exp_avg);
    check_state(parameter, "second moment", parameter.exp_avg_sq);
    for (const Tensor& tensor :
         {parameter.master, parameter.grad, parameter.exp_avg, parameter.exp_avg_sq}) {
        check_dtype("adamw_step", parameter.name.c_str(), tensor, DType::kFloat32);
    }
    EVENKEEL_CHECK(parameter.value.dtype() == DType::kBFloat16 ||
                       parameter.value.raw() == parameter.master.raw(),
                   "adamw_step", parameter.name, ": got an ", name_of(parameter.value.dtype()),
                   " value apart from its master, want ", "one that shares its memory");
}

}  // namespace

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

void adamw_step(const ParameterList& parameters,
                const AdamWConfig& config,
                double lr,
                double grad_scale,
                std::int64_t step) {
    config.validate();
    EVENKEEL_CHECK(step >= 1, "adamw_step", "step: got ", step, ", want 1 or more");
    for (const Parameter* parameter : parameters) check_parameter(*parameter);

    const auto t = static_cast<double>(step);
    AdamWScalars s;
    s.grad_scale = static_cast<float>(grad_scale);
    s.beta1 = static_cast<float>(config.beta1);
    s.one_minus_beta1 = static_cast<float>(1.0 - config.beta1);
    s.beta2 = static_cast<float>(config.beta2);
    s.one_minus_beta2 = static_cast<float>(1.0 - config.beta2);
    s.step_size = static_cast<float>(lr / (1.0 - std::pow(config.beta1, t)));
    s.root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(config.beta2, t)));
    s.epsilon = static_cast<float>(config.epsilon);
    s.decay = static_cast<float>(lr * config.weight_decay);
    cpu::adamw_step(parameters, s);
}

void zero_gradients(const ParameterList& parameters) {
    for (const Parameter* parameter : parameters) parameter->grad.zero();
}

}  // namespace evenkeel
