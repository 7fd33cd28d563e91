#include "model/blocks/norm.h"

#include "model/ops/elementwise.h"
#include "parallel/sequence_region.h"

namespace evenkeel {
namespace {

Parameter of_channels(const ProcessGrid& grid, const std::string& name, std::int64_t width) {
    Parameter parameter = declare_parameter(
        name, {width}, Sharding::replicated(grid.tp_rank(), grid.tp_size()), DType::kFloat32);
    parameter.weight_decay = false;
    parameter.gradient_sum = gradient_sum_over_rows(grid);
    return parameter;
}

}  // namespace

Norm::Norm(const ProcessGrid& grid, const ModelConfig& config, const std::string& name)
    : config_(config.norm), eps_(config.norm_eps), gain_(of_channels(grid, name, config.width)) {
    if (config_.bias) bias_ = of_channels(grid, name + "_bias", config.width);
}

void Norm::initialize() {
    init_constant(gain_, static_cast<float>(1.0 - config_.gain_offset));
    if (config_.bias) init_constant(bias_, 0.0f);
}

Tensor Norm::forward(const Tensor& x, Tensor& statistics) const {
    const std::int64_t rows = x.size(0) * x.size(1);
    const Tensor y = Tensor::uninitialized(x.shape(), x.dtype(), x.device());
    switch (config_.kind) {
        case NormConfig::Kind::kRms:
            statistics = Tensor::uninitialized({rows}, DType::kFloat32, x.device());
            rms_norm_forward(x, gain_.value, eps_, y, statistics, config_.gain_offset);
            break;
        case NormConfig::Kind::kLayerNorm:
            statistics = Tensor::uninitialized({2, rows}, DType::kFloat32, x.device());
            layer_norm_forward(x, gain_.value, bias_.value, eps_, y, statistics,
                               config_.gain_offset);
            break;
    }
    return y;
}

void Norm::backward(const Tensor& dy,
                    const Tensor& x,
                    const Tensor& statistics,
                    bool accumulate,
                    const Tensor& dx) const {
    switch (config_.kind) {
        case NormConfig::Kind::kRms:
            return rms_norm_backward(dy, x, gain_.value, statistics, accumulate, dx, gain_.grad,
                                     config_.gain_offset);
        case NormConfig::Kind::kLayerNorm:
            return layer_norm_backward(dy, x, gain_.value, statistics, accumulate, dx, gain_.grad,
                                       bias_.grad, config_.gain_offset);
    }
}

void Norm::collect_parameters(ParameterList& list) {
    list.push_back(&gain_);
    if (config_.bias) list.push_back(&bias_);
}

}  // namespace evenkeel
