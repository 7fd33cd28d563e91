// Which families can hold a model.
#include <algorithm>
#include <filesystem>

#include "framework/error.h"
#include "framework/training/run_state.h"
#include "model/hugging_face/export.h"
#include "model/hugging_face/gather.h"

namespace evenkeel::hugging_face {
namespace {

namespace fs = std::filesystem;

template <typename Section>
std::string json_of(Section section) {
    return to_json([&](ConfigVisitor& v) { section.visit_fields(v); });
}

// Without what changes nothing of what a layer computes.
AttentionConfig function_of(AttentionConfig config) {
    config.softmax_scale = config.logit_scale();
    config.sink_init = 0.0;
    config.qk_clip_threshold = 0.0;
    config.rope.layout = RopeConfig().layout;
    QkNormConfig& norm = config.qk_norm;
    const QkNormConfig defaults;
    if (norm.kind == QkNormKind::kNone) {
        norm = {};
        norm.kind = QkNormKind::kNone;
    }
    norm.gain_init = defaults.gain_init;
    norm.gain_weight_decay = defaults.gain_weight_decay;
    norm.anneal_steps = defaults.anneal_steps;
    norm.gain_bound = defaults.gain_bound;
    norm.gain_pull = defaults.gain_pull;
    return config;
}

// Without the layers' attention, which is compared layer by layer.
ModelConfig function_of(ModelConfig config) {
    const ModelConfig defaults;
    config.method.clear();
    config.telemetry = defaults.telemetry;
    config.recompute = defaults.recompute;
    config.type = defaults.type;
    config.init_std = defaults.init_std;
    config.embedding_init_std = defaults.embedding_init_std;
    config.attention = {};
    config.global_interval = 0;
    config.local_rope_theta = 0.0;
    config.qk_norm_layers.clear();
    return config;
}

// In the middle of coming in, the norm is neither of the models that a folder can name.
void check_annealed(const ModelConfig& config, const TensorSource& weights) {
    const std::int64_t steps = config.attention.qk_norm.anneal_steps;
    if (steps == 0) return;
    const std::string name = "qk_norm_anneal";
    float done = 0.0f;
    if (weights.contains(name)) {
        done = read_whole(weights, name, DType::kFloat32).data<float>()[0];
    }
    if (done >= static_cast<float>(steps)) return;
    // RUN/checkpoints/step_00000000/model.safetensors: what retrofit's configuration continues with is beside it.
    const fs::path run = fs::path(weights.origin()).parent_path().parent_path().parent_path();
    const fs::path continued = run / "continued";
    throw_error(ErrorCode::kConfig, "export",
                concat(weights.origin(), ": its QK-norm is coming in, after ", done, " of ", steps,
                       " steps (model.attention.qk_norm.anneal_steps); ",
                       fs::is_directory(continued / "checkpoints")
                           ? concat("export ", continued.string(), " instead")
                           : std::string("export it afterwards")));
}

// What the rules that work on weights between steps keep; of no use to a model that is not trained.
bool is_rule_state(const std::string& name) {
    return name == "qk_norm_anneal" || name.ends_with("_gain_start");
}

// The maps and the source must speak of the same tensors.
void check_weights(const std::vector<TensorMap>& maps, const TensorSource& weights) {
    std::vector<std::string> left = weights.names();
    std::sort(left.begin(), left.end());
    for (const TensorMap& map : maps) {
        EVENKEEL_CHECK_CODE(weights.contains(map.ours), ErrorCode::kIo, "export", weights.origin(),
                            ": has no tensor ", map.ours);
        const Shape shape = weights.shape(map.ours);
        EVENKEEL_CHECK_CODE(shape == map.shape, ErrorCode::kIo, "export", weights.origin(),
                            ": tensor ", map.ours, ": got shape ", to_string(shape), ", want ",
                            to_string(map.shape));
        const auto found = std::lower_bound(left.begin(), left.end(), map.ours);
        if (found != left.end() && *found == map.ours) left.erase(found);
    }
    for (const std::string& name : left) {
        EVENKEEL_CHECK_CODE(is_rule_state(name), ErrorCode::kConfig, "export", weights.origin(),
                            ": such a folder has no place for the tensor ", name);
    }
}

void replace_all(std::string& text, const std::string& what, const std::string& by) {
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
        text.replace(at, what.size(), by);
    }
}

// Of json_difference, "KEY: got A, want B": whose A and B are.
std::string with_owners(std::string difference, const std::string& family) {
    replace_all(difference, ": got ", concat(": ", family, " wants "));
    replace_all(difference, ", want ", ", the model has ");
    return difference;
}

// In how many settings a folder of the family would be another model; many where it can't say them at all.
int distance(const Family& family, const ModelConfig& model) {
    constexpr int kFar = 1000;
    try {
        ConfigJson json;
        family.write_config(model, json);
        const std::string difference = difference_in_function(model, family.read_config(json));
        int settings = 0;
        for (std::size_t at = 0; (at = difference.find(": got ", at)) != std::string::npos; ++at) {
            ++settings;
        }
        return settings;
    } catch (const Error&) {
        return kFar;
    }
}

}  // namespace

std::string difference_in_function(const ModelConfig& ours, const ModelConfig& theirs) {
    const std::string of_model =
        json_difference(json_of(function_of(theirs)), json_of(function_of(ours)));
    if (!of_model.empty()) return of_model;
    for (std::int64_t layer = 0; layer < ours.num_layers; ++layer) {
        AttentionConfig mine = function_of(ours.layer_attention(layer));
        const AttentionConfig other = function_of(theirs.layer_attention(layer));
        using Gain = QkNormConfig::Gain;
        if (other.qk_norm.gain == Gain::kSharedChannel &&
            mine.qk_norm.gain == Gain::kPerHeadChannel) {
            mine.qk_norm.gain = Gain::kSharedChannel;
        }
        const std::string difference = json_difference(json_of(other), json_of(mine));
        if (!difference.empty()) return concat("attention of layer ", layer, ": ", difference);
    }
    return "";
}

Fit fit(const Family& family,
        const ModelConfig& model,
        const TensorSource& weights,
        const ConfigJson& origin) {
    check_annealed(model, weights);
    ModelConfig config = model;
    config.attention.qk_norm.anneal_steps = 0;  // they are over
    Fit fit{&family, origin, {}};
    // The file that a model came with stays as it is, unless it has come to say something else.
    const bool is_origin = origin.text("model_type", "") == family.name &&
                           difference_in_function(config, family.read_config(origin)).empty();
    if (!is_origin) {
        family.write_config(config, fit.json);
        fit.json.erase("quantization_config");
        if (family.files == nullptr) fit.json.erase("auto_map");
    }
    const std::string difference = difference_in_function(config, family.read_config(fit.json));
    EVENKEEL_CHECK_CODE(difference.empty(), ErrorCode::kConfig, "export", "a folder of the family ",
                        family.name,
                        " would be another model: ", with_owners(difference, family.name));
    fit.maps = family.tensors(config);
    check_weights(fit.maps, weights);
    check_shared(weights, fit.maps);
    return fit;
}

Fit fit_any(const std::string& name,
            const ModelConfig& config,
            const TensorSource& weights,
            const ConfigJson& origin) {
    check_annealed(config, weights);  // what no family could hold
    if (!name.empty()) {
        const Family* family = find_family(name);
        EVENKEEL_CHECK_CODE(family != nullptr, ErrorCode::kConfig, "export", "--family: got \"",
                            name, "\", want one of ", family_names());
        return fit(*family, config, weights, origin);
    }
    std::vector<const Family*> order;
    const Family* own = find_family(origin.text("model_type", ""));
    if (own != nullptr) order.push_back(own);
    const Family* with_code = nullptr;
    for (const Family* family : families()) {
        if (family->files != nullptr) with_code = family;
        if (family != own && family->files == nullptr && !family->refused) order.push_back(family);
    }
    struct Reason {
        int distance;
        std::string text;
    };
    std::vector<Reason> reasons;
    for (const Family* family : order) {
        try {
            return fit(*family, config, weights, origin);
        } catch (const Error& error) {
            if (error.code() != ErrorCode::kConfig) throw;
            ModelConfig annealed = config;
            annealed.attention.qk_norm.anneal_steps = 0;
            const std::string what = error.what();  // "[export] ..."
            const std::size_t tag = what.starts_with("[") ? what.find("] ") : std::string::npos;
            reasons.push_back({distance(*family, annealed),
                               concat("\n  ", family->name, ": ",
                                      tag == std::string::npos ? what : what.substr(tag + 2))});
        }
    }
    std::stable_sort(reasons.begin(), reasons.end(),
                     [](const Reason& a, const Reason& b) { return a.distance < b.distance; });
    constexpr std::size_t kShown = 3;
    // Not to send anybody from one refusal to the next.
    const auto holds = [&](const Family& family) {
        try {
            fit(family, config, weights, origin);
            return true;
        } catch (const Error& error) {
            if (error.code() != ErrorCode::kConfig) throw;
            return false;
        }
    };
    const std::string advice = with_code == nullptr ? ""
                               : holds(*with_code)
                                   ? "; --remote-code writes one of its own"
                                   : "; nor can the one of its own that --remote-code writes";
    std::string text;
    for (std::size_t i = 0; i < std::min(reasons.size(), kShown); ++i) text += reasons[i].text;
    if (reasons.size() > kShown) {
        text += concat("\n  and ", reasons.size() - kShown,
                       " that are no nearer to it; --family NAME has the reason of each");
    }
    throw_error(ErrorCode::kConfig, "export",
                concat("no family that the transformers package knows can hold this model", advice,
                       ":", text));
}

}  // namespace evenkeel::hugging_face
