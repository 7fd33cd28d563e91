#include "model/retrofit/retrofit.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "model/telemetry/finite_probe.h"
#include "model/telemetry/head_tables.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "retrofit";

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
    throw_error(ErrorCode::kConfig, kOp, concat(parts...));
}

const char* name_of_kind(QkNormKind kind) {
    switch (kind) {
        case QkNormKind::kNone:
            return "none";
        case QkNormKind::kRms:
            return "rms";
        case QkNormKind::kL2:
            return "l2";
        case QkNormKind::kLayerNorm:
            return "layer_norm";
    }
    return "";
}

// Maxima and sums of what a layer's heads of this rank do.
struct HeadSums {
    std::vector<float> max_logit;
    std::vector<double> entropy;  // times tokens
};

void add(const AttentionStats& stats, std::int64_t tokens, HeadSums& sums) {
    const Tensor max_logit = stats.max_logit_uncapped.to(Device::kCpu);
    const Tensor entropy = stats.entropy.to(Device::kCpu);
    const auto heads = static_cast<std::size_t>(max_logit.numel());
    sums.max_logit.resize(heads, -INFINITY);
    sums.entropy.resize(heads, 0.0);
    for (std::size_t head = 0; head < heads; ++head) {
        const float now = max_logit.data<float>()[head];
        float& highest = sums.max_logit[head];
        if (!(now <= highest) && !std::isnan(highest)) highest = now;
        sums.entropy[head] +=
            static_cast<double>(entropy.data<float>()[head]) * static_cast<double>(tokens);
    }
}

void copy(const Tensor& from, const Tensor& to) {
    if (from.defined() && to.defined()) to.copy_from(from);
}

void set_gain(const Parameter& parameter, const Tensor& gain) {
    check_shape(kOp, parameter.name.c_str(), gain, parameter.local_shape());
    parameter.assign(gain);
}

// "3", and not "0,3" or "3-5".
bool is_one(const std::string& layers) {
    return layers.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

void check_retrofit(const ModelConfig& config) {
    const QkNormConfig& norm = config.attention.qk_norm;
    if (norm.kind != QkNormKind::kNone) {
        const std::string layers =
            config.qk_norm_layers.empty()
                ? std::string("in all layers")
                : concat(is_one(config.qk_norm_layers) ? "in layer " : "in layers ",
                         config.qk_norm_layers);
        if (norm.anneal_steps > 0) {
            refuse("the model has QK-norm already, ", layers, ", which comes in over its first ",
                   norm.anneal_steps,
                   " updates (model.attention.qk_norm.anneal_steps); go on "
                   "training it");
        }
        refuse("the model has QK-norm already: model.attention.qk_norm.kind is ",
               name_of_kind(norm.kind),
               norm.scope == QkNormConfig::Scope::kFullWidth
                   ? ", scope full_width (one statistic for all heads of a token), "
                   : ", scope head, ",
               layers, "; there is nothing to add");
    }
    if (config.architecture == Architecture::kNgpt) {
        refuse(
            "model.architecture is ngpt, which gives queries and keys unit length itself; "
            "there is nothing to add");
    }
    if (config.sigma_reparam) {
        refuse(
            "model.sigma_reparam is true: it bounds W_q and W_k by their spectral norm, and a "
            "norm behind them would take that scale off again; train without it first");
    }
}

ModelConfig retrofitted_config(const ModelConfig& config, const RetrofitOptions& options) {
    check_retrofit(config);
    ModelConfig result = config;
    // Its settings are no longer those of the name.
    result.method.clear();
    result.qk_norm_layers = options.layers;
    // What 0 stands for must not change with the kind of norm.
    result.attention.softmax_scale = config.attention.softmax_scale;
    QkNormConfig& norm = result.attention.qk_norm;
    norm = {};
    norm.kind = QkNormKind::kRms;
    norm.scope = QkNormConfig::Scope::kHead;
    norm.gain = QkNormConfig::Gain::kPerHeadChannel;
    norm.anneal_steps = options.anneal_steps;
    norm.gain_bound = options.gain_bound;
    // Throws for layers that there are not.
    bool any = false;
    for (std::int64_t layer = 0; layer < result.num_layers; ++layer) {
        any = any || result.layer_attention(layer).qk_norm.kind != QkNormKind::kNone;
    }
    EVENKEEL_CHECK(any, kOp, "layers: none is left");
    return result;
}

void check_finite_weights(const ProcessGrid& grid, LanguageModel& model, const char* op) {
    FiniteProbe probe;
    for (const Parameter* parameter : model.parameters()) {
        probe.check(parameter->name, parameter->master);
    }
    const std::string first = probe.first(grid);
    EVENKEEL_CHECK_CODE(first.empty(), ErrorCode::kNonFinite, op, "the weight ", first,
                        " holds a NaN or an infinity; start from an earlier checkpoint");
}

HeadMeasurements measure_heads(const ProcessGrid& grid,
                               LanguageModel& model,
                               std::span<const Batch> batches,
                               const LanguageModel::AttentionObserver& also) {
    EVENKEEL_CHECK(!batches.empty(), kOp, "batches: got none");
    const auto layers = static_cast<std::size_t>(model.config().num_layers);
    std::vector<HeadSums> sums(layers);
    double loss = 0.0;
    std::int64_t tokens = 0;
    for (const Batch& batch : batches) {
        const std::int64_t count = batch.tokens.numel();
        const double of_batch = model.observe(batch, [&](const LanguageModel::AttentionView& view) {
            add(view.stats, count, sums[static_cast<std::size_t>(view.layer)]);
            if (also) also(view);
        });
        loss += of_batch * static_cast<double>(count);
        tokens += count;
    }
    const auto heads = static_cast<std::int64_t>(sums.front().max_logit.size());
    const Tensor local =
        Tensor::uninitialized({2, model.config().num_layers, heads}, DType::kFloat32);
    float* out = local.data<float>();
    for (const HeadSums& of_layer : sums)
        out = std::copy(of_layer.max_logit.begin(), of_layer.max_logit.end(), out);
    for (const HeadSums& of_layer : sums) {
        for (const double sum : of_layer.entropy) {
            *out++ = static_cast<float>(sum / static_cast<double>(tokens));
        }
    }
    std::vector<MetricTable> tables = gather_heads(grid, {"max_logit", "entropy"}, local);
    return {loss / static_cast<double>(tokens), std::move(tables[0]), std::move(tables[1])};
}

ModelCalibration calibrate(const ProcessGrid& grid,
                           LanguageModel& model,
                           std::span<const Batch> batches,
                           const CalibrationOptions& options) {
    const ModelConfig& config = model.config();
    check_retrofit(config);
    std::map<std::string, const Parameter*> parameters;
    for (const Parameter* parameter : model.parameters()) parameters[parameter->name] = parameter;
    ModelCalibration result;
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        const std::string prefix = concat("layers.", layer, ".attention.");
        const auto local_heads = [&](const char* name) {
            return parameters.at(prefix + name)->local_shape()[0] / config.attention.head_dim;
        };
        AttentionConfig attention = config.layer_attention(layer);
        attention.softcap = 0.0;
        const auto sink = parameters.find(prefix + "sink");
        result.layers.emplace_back(
            attention, local_heads("wq"), local_heads("wk"), options,
            sink == parameters.end() ? Tensor() : sink->second->value.to(Device::kCpu));
    }
    const auto add_to_layer = [&](const LanguageModel::AttentionView& view) {
        HeadCalibration& layer = result.layers[static_cast<std::size_t>(view.layer)];
        layer.update(view.q.to(Device::kCpu), view.k.to(Device::kCpu));
        layer.observe({view.stats.max_logit_uncapped.to(Device::kCpu),
                       view.stats.max_logit_uncapped.to(Device::kCpu),
                       view.stats.entropy.to(Device::kCpu),
                       {},
                       {}},
                      view.q.size(0));
    };
    result.measured = measure_heads(grid, model, batches, add_to_layer);
    return result;
}

double gradient_norm_of(LanguageModel& model, std::span<const Batch> batches) {
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, model.buckets().device());
    compute_gradients(model, batches, numbers);
    const Tensor on_cpu = numbers.to(Device::kCpu);
    return std::sqrt(on_cpu.data<double>()[kSquaredNormIndex]);
}

void retrofit_weights(LanguageModel& from,
                      LanguageModel& to,
                      const std::vector<LayerGains>& gains) {
    EVENKEEL_CHECK(static_cast<std::int64_t>(gains.size()) == to.config().num_layers, kOp,
                   "gains: got those of ", gains.size(), " layers, want ", to.config().num_layers);
    std::map<std::string, const Parameter*> old;
    for (const Parameter* parameter : from.parameters()) old[parameter->name] = parameter;
    std::map<std::string, Tensor> new_gains;
    for (std::size_t layer = 0; layer < gains.size(); ++layer) {
        const std::string prefix = concat("layers.", layer, ".attention.");
        if (gains[layer].q.defined()) new_gains[prefix + "q_gain"] = gains[layer].q;
        if (gains[layer].k.defined()) new_gains[prefix + "k_gain"] = gains[layer].k;
    }
    for (const Parameter* parameter : to.parameters()) {
        if (const auto gain = new_gains.find(parameter->name); gain != new_gains.end()) {
            set_gain(*parameter, gain->second);
            new_gains.erase(gain);
        } else if (const auto found = old.find(parameter->name); found != old.end()) {
            copy(found->second->master, parameter->master);
            copy(found->second->exp_avg, parameter->exp_avg);
            copy(found->second->exp_avg_sq, parameter->exp_avg_sq);
            parameter->refresh_value();
        }
    }
    EVENKEEL_CHECK(new_gains.empty(), kOp, "gains: the model has no ", new_gains.begin()->first);
    to.weights_given();
}

}  // namespace evenkeel
