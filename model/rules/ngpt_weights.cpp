#include "model/rules/ngpt_weights.h"

#include <cmath>
#include <utility>

namespace evenkeel {

NgptWeights::NgptWeights(const ProcessGrid& grid,
                         const ModelConfig& config,
                         const ModelWeights& weights)
    : grid_(grid), type_(to_dtype(config.type)) {
    const double root = std::sqrt(static_cast<double>(config.width));
    add(weights.embedding, true);
    for (const LayerWeights& layer : weights.layers) {
        for (const Parameter* weight : {layer.wq, layer.wk, layer.wv}) add(weight, true);
        add(layer.wo, false);
        if (layer.w_gate != nullptr) add_scaled(layer.w_gate, root, 1.0);
        add_scaled(layer.w_up, layer.w_gate != nullptr ? 1.0 : root, 1.0);
        add(layer.w_down, false);
    }
    add_scaled(weights.output, root, 1.0 / root);
}

void NgptWeights::add(const Parameter* weight, bool unit_rows) {
    matrices_.push_back(std::make_unique<Matrix>(Matrix{weight, unit_rows, 1.0, 1.0f, {}}));
}

void NgptWeights::add_scaled(const Parameter* weight, double factor, double first) {
    add(weight, true);
    Matrix& matrix = *matrices_.back();
    matrix.factor = factor;
    matrix.first = static_cast<float>(first);
    matrix.scale = declare_parameter(weight->name + "_scale", {weight->global_shape[0]},
                                     weight->sharding, DType::kFloat32);
    matrix.scale.weight_decay = false;
    matrix.scale.whole_state = true;
}

void NgptWeights::collect_parameters(ParameterList& list) {
    for (const auto& matrix : matrices_) {
        Parameter& weight = declaration_of(list, matrix->weight);
        weight.weight_decay = false;
        weight.derived_value = !matrix->scale.name.empty();
        weight.whole_state = true;
    }
    for (const auto& matrix : matrices_) {
        if (!matrix->scale.name.empty()) list.push_back(&matrix->scale);
    }
}

// Parameters have their memory only after collect_parameters.
void NgptWeights::make_work() {
    std::vector<UnitMatrix> parts;
    for (const auto& matrix : matrices_) {
        const Parameter& weight = *matrix->weight;
        UnitMatrix part;
        part.weight = weight.master.data<float>();
        part.value = weight.value.raw() == weight.master.raw() ? nullptr : weight.value.raw();
        part.gradient = weight.grad.data<float>();
        if (!matrix->scale.name.empty()) {
            part.gain = matrix->scale.master.data<float>();
            part.gain_gradient = matrix->scale.grad.data<float>();
        }
        part.rows = weight.master.size(0);
        part.columns = weight.master.size(1);
        part.factor = static_cast<float>(matrix->factor);
        part.unit_rows = matrix->unit_rows ? 1 : 0;
        parts.push_back(part);
    }
    work_ = std::make_unique<UnitWork>(std::move(parts), type_, grid_.device());
}

void NgptWeights::initialized() {
    make_work();
    for (const auto& matrix : matrices_) {
        if (!matrix->scale.name.empty()) init_constant(matrix->scale, matrix->first);
    }
    normalize_weights(*work_);
}

// Weights of a checkpoint have unit length already, but for a rounding that another division would make: only the
// values are to be made.
void NgptWeights::loaded() { refresh_values(*work_); }

void NgptWeights::updated(const Tensor&) { normalize_weights(*work_); }

void NgptWeights::gradients_complete() { convert_gradients(*work_); }

}  // namespace evenkeel
