#include "model/rules/gain_hold.h"

#include <cmath>
#include <utility>

namespace evenkeel {
namespace {

Parameter start_of(const Parameter& gain) {
    Parameter start =
        declare_parameter(gain.name + "_start", gain.global_shape, gain.sharding, gain.dtype);
    start.weight_decay = false;
    start.trained = false;
    start.optional = true;
    start.whole_state = true;
    return start;
}

// What stands in a start until it is known.
constexpr float kUnknown = NAN;

bool is_unknown(const Parameter& start) {
    const Tensor values = start.master.to(Device::kCpu).contiguous();
    for (std::int64_t i = 0; i < values.numel(); ++i) {
        if (!std::isnan(values.data<float>()[i])) return false;
    }
    return true;
}

}  // namespace

GainHold::GainHold(const std::vector<AttentionConfig>& attention,
                   const std::vector<LayerWeights>& layers) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const LayerWeights& weights = layers[i];
        if (weights.q_gain == nullptr || weights.k_gain == nullptr) continue;
        auto layer = std::make_unique<Layer>(
            Layer{gain_limits(attention[i]), weights.q_gain, weights.k_gain, {}, {}});
        if (layer->pulls()) {
            layer->q_start = start_of(*layer->q);
            layer->k_start = start_of(*layer->k);
        }
        layers_.push_back(std::move(layer));
    }
}

void GainHold::collect_parameters(ParameterList& list) {
    for (const auto& layer : layers_) {
        for (const Parameter* gain : {layer->q, layer->k}) {
            declaration_of(list, gain).whole_state = true;
        }
        if (!layer->pulls()) continue;
        list.push_back(&layer->q_start);
        list.push_back(&layer->k_start);
    }
}

void GainHold::initialized() {
    loading();
    loaded();
}

void GainHold::loading() {
    for (const auto& layer : layers_) {
        if (!layer->pulls()) continue;
        init_constant(layer->q_start, kUnknown);
        init_constant(layer->k_start, kUnknown);
    }
}

void GainHold::loaded() {
    for (const auto& layer : layers_) {
        if (!layer->pulls()) continue;
        if (is_unknown(layer->q_start)) layer->q_start.master.copy_from(layer->q->master);
        if (is_unknown(layer->k_start)) layer->k_start.master.copy_from(layer->k->master);
    }
}

void GainHold::updated(const Tensor&) {
    for (const auto& layer : layers_) {
        hold_gains(layer->limits, layer->q_start.master, layer->k_start.master, layer->q->master,
                   layer->k->master);
    }
}

}  // namespace evenkeel
