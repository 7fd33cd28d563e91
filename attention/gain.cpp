#include "attention/gain.h"

#include <cmath>

#include "attention/cpu/gain.h"
#include "attention/cuda/gain.h"
#include "framework/error.h"

namespace evenkeel {
namespace {

using Gain = QkNormConfig::Gain;
using GainForm = QkNormConfig::GainForm;

GainRule rule_of(const QkNormConfig& config, const Tensor& lambda) {
    GainRule rule;
    rule.exponential = config.gain_form == GainForm::kExponential;
    rule.offset = static_cast<float>(config.gain_offset);
    rule.unit = static_cast<float>(config.gain_unit);
    rule.largest = static_cast<float>(std::log(config.gain_limit));
    if (lambda.defined()) rule.lambda = lambda.data<float>();
    return rule;
}

// Of the parameter, and of the gain that is made of it.
Shape parameter_shape(Gain gain, std::int64_t heads, std::int64_t head_dim) {
    switch (gain) {
        case Gain::kPerHeadChannel:
            return {heads, head_dim};
        case Gain::kSharedChannel:
            return {head_dim};
        case Gain::kPerHeadScalar:
            return {heads};
        case Gain::kScalar:
            return {1};
        case Gain::kNone:
            break;
    }
    return {};
}

void check_floats(const char* op, const char* name, const Tensor& tensor, Device device) {
    check_dtype(op, name, tensor, DType::kFloat32);
    EVENKEEL_CHECK(tensor.device() == device, op, name, ": got ", name_of(tensor.device()),
                   ", want ", name_of(device));
    EVENKEEL_CHECK(tensor.is_contiguous(), op, name, ": want a contiguous tensor");
}

void check_lambda(const char* op, const Tensor& lambda, Device device) {
    if (!lambda.defined()) return;
    check_shape(op, "lambda", lambda, {1});
    check_floats(op, "lambda", lambda, device);
}

}  // namespace

bool is_kernel_gain(const QkNormConfig& config) {
    if (config.gain == Gain::kNone) return true;
    return config.gain_form == GainForm::kLinear && config.gain_unit == 1.0 &&
           (config.gain == Gain::kPerHeadChannel || config.gain == Gain::kSharedChannel);
}

double initial_gain_parameter(const QkNormConfig& config) {
    if (config.gain_form == GainForm::kExponential) return std::log(config.gain_init);
    return (config.gain_init - config.gain_offset) * config.gain_unit;
}

Tensor effective_gain(const Tensor& parameter,
                      const QkNormConfig& config,
                      std::int64_t heads,
                      std::int64_t head_dim,
                      const Tensor& lambda) {
    constexpr const char* kOp = "effective_gain";
    if (config.gain == Gain::kNone) {
        EVENKEEL_CHECK(!parameter.defined(), kOp, "parameter: got one where gain is none");
        return {};
    }
    check_shape(kOp, "parameter", parameter, parameter_shape(config.gain, heads, head_dim));
    check_floats(kOp, "parameter", parameter, parameter.device());
    check_lambda(kOp, lambda, parameter.device());
    const bool shared = config.gain == Gain::kSharedChannel;
    const Tensor gain = Tensor::uninitialized(shared ? Shape{head_dim} : Shape{heads, head_dim},
                                              DType::kFloat32, parameter.device());
    if (gain.numel() == 0) return gain;
    switch (gain.device()) {
        case Device::kCpu:
            cpu::effective_gain(parameter, rule_of(config, lambda), gain);
            break;
        case Device::kCuda:
            cuda::effective_gain(parameter, rule_of(config, lambda), gain);
            break;
    }
    return gain;
}

void add_gain_gradient(const Tensor& dgain,
                       const Tensor& parameter,
                       const QkNormConfig& config,
                       const Tensor& dparameter,
                       const Tensor& lambda) {
    constexpr const char* kOp = "add_gain_gradient";
    if (config.gain == Gain::kNone) {
        EVENKEEL_CHECK(!dgain.defined() && !parameter.defined() && !dparameter.defined(), kOp,
                       "gain: got one where it is none");
        return;
    }
    const bool shared = config.gain == Gain::kSharedChannel;
    EVENKEEL_CHECK(dgain.defined() && dgain.rank() == (shared ? 1 : 2), kOp, "dgain: got ",
                   dgain.defined() ? to_string(dgain.shape()) : "no tensor", ", want ",
                   shared ? "[D]" : "[N, D]");
    const std::int64_t heads = shared ? 1 : dgain.size(0), head_dim = dgain.size(shared ? 0 : 1);
    const Shape shape = parameter_shape(config.gain, heads, head_dim);
    check_shape(kOp, "parameter", parameter, shape);
    check_shape(kOp, "dparameter", dparameter, shape);
    check_floats(kOp, "dgain", dgain, dgain.device());
    check_floats(kOp, "parameter", parameter, dgain.device());
    check_floats(kOp, "dparameter", dparameter, dgain.device());
    check_lambda(kOp, lambda, dgain.device());
    if (dgain.numel() == 0) return;
    switch (dgain.device()) {
        case Device::kCpu:
            return cpu::add_gain_gradient(dgain, parameter, rule_of(config, lambda), dparameter);
        case Device::kCuda:
            return cuda::add_gain_gradient(dgain, parameter, rule_of(config, lambda), dparameter);
    }
}

}  // namespace evenkeel
