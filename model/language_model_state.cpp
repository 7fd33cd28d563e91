// Saving, loading and describing a language model.
#include "framework/log.h"
#include "framework/storage/state_shard.h"
#include "framework/training/run_state.h"
#include "model/hugging_face/folder.h"
#include "model/language_model.h"
#include "model/rules/weight_rule.h"
#include "parallel/sharded_state.h"

namespace evenkeel {
namespace {

// The metadata key under which model.safetensors carries the description.
constexpr const char* kModelKey = "model";
const std::string kAnneal = "qk_norm_anneal";

std::string config_json(ModelConfig config) {
    return to_json([&](ConfigVisitor& v) { config.visit_fields(v); });
}

ModelConfig described(const TensorSource& weights) {
    ModelConfig config;
    parse_config([&](ConfigVisitor& v) { config.visit_fields(v); }, weights.model(),
                 weights.origin());
    return config;
}

// Sets what `saved` has of the settings without parameters as `now` has it, and says what that changes.
std::string take_settings(const AttentionConfig& now, AttentionConfig& saved) {
    AttentionConfig taken = saved;
    taken.softcap = now.softcap;
    taken.qk_clip_threshold = now.qk_clip_threshold;
    using Sink = AttentionConfig::Sink;
    if (now.sink != Sink::kLearned && saved.sink != Sink::kLearned) taken.sink = now.sink;
    const auto json = [](AttentionConfig config) {
        return to_json([&](ConfigVisitor& v) { v.section("model.attention", config, ""); });
    };
    const std::string changes = json_changes(json(saved), json(taken));
    saved = taken;
    return changes;
}

// Whether its QK-norm was coming in, and is in now.
bool is_annealed(const TensorSource& weights) {
    if (!weights.contains(kAnneal) || weights.model().empty()) return false;
    const std::int64_t steps = described(weights).attention.qk_norm.anneal_steps;
    const Shape shape = weights.shape(kAnneal);
    if (steps == 0 || num_elements(shape) == 0) return false;
    const Tensor state = Tensor::uninitialized(shape, DType::kFloat32);
    weights.read_slice(kAnneal, 0, 0, shape[0], state);
    return state.data<float>()[0] >= static_cast<float>(steps);
}

// Weights under another description.
class DescribedSource : public TensorSource {
  public:
    DescribedSource(const TensorSource& weights, std::string model)
        : weights_(weights), model_(std::move(model)) {}
    std::string origin() const override { return weights_.origin(); }
    std::string model() const override { return model_; }
    std::vector<std::string> names() const override { return weights_.names(); }
    bool contains(const std::string& name) const override { return weights_.contains(name); }
    Shape shape(const std::string& name) const override { return weights_.shape(name); }
    DType dtype(const std::string& name) const override { return weights_.dtype(name); }
    void read_slice(const std::string& name,
                    int dim,
                    std::int64_t begin,
                    std::int64_t end,
                    const Tensor& out) const override {
        weights_.read_slice(name, dim, begin, end, out);
    }

  private:
    const TensorSource& weights_;

  protected:
    std::string model_;
};

// Weights whose QK-norm has come in, as those of the model that always had it.
class AnnealedSource final : public DescribedSource {
  public:
    explicit AnnealedSource(const TensorSource& weights) : DescribedSource(weights, "") {
        ModelConfig config = described(weights);
        config.attention.qk_norm.anneal_steps = 0;
        model_ = config_json(config);
    }
    std::vector<std::string> names() const override {
        std::vector<std::string> names = DescribedSource::names();
        std::erase(names, kAnneal);
        return names;
    }
    bool contains(const std::string& name) const override {
        return name != kAnneal && DescribedSource::contains(name);
    }
};

// Weights as those of a model with the settings of `now` that have no parameters of their own.
class TakenSource final : public DescribedSource {
  public:
    TakenSource(const TensorSource& weights, const AttentionConfig& now)
        : DescribedSource(weights, weights.model()) {
        if (model_.empty()) return;
        ModelConfig config = described(weights);
        changes_ = take_settings(now, config.attention);
        model_ = config_json(config);
    }
    const std::string& changes() const { return changes_; }  // "KEY: A before, B now; .."

  private:
    std::string changes_;
};

}  // namespace

std::string description_of(const ModelConfig& config) {
    ModelConfig described = config;
    described.telemetry = true;              // watching changes nothing
    described.recompute = Recompute::kNone;  // nor does making things again
    described.method.clear();                // its settings are there
    return config_json(described);
}

std::string LanguageModel::description() const { return description_of(config_); }

std::string LanguageModel::restated(const std::string& description) const {
    ModelConfig config;
    try {
        parse_config([&](ConfigVisitor& v) { config.visit_fields(v); }, description, "model");
    } catch (const Error&) {
        return description;  // of a later version; what is not known here is told by comparing
    }
    return description_of(config);
}

ModelState LanguageModel::state() {
    ModelState state;
    state.shards = local_state(grid_, parameters_, {{kModelKey, description()}});
    state.writers = state_writers(grid_, parameters_);
    state.layout =
        concat("{\"tensor_parallel\": ", grid_.tp_size(), ", \"data_parallel\": ", grid_.dp_size(),
               ", \"zero_stage\": ", buckets_.is_cut() ? 1 : 0, "}");
    return state;
}

void LanguageModel::save_state(const std::string& directory) {
    save_parameters(grid_, parameters_, directory, {{kModelKey, description()}});
}

// The description is checked before the tensors: what differs in the configuration says more than a shape.
void LanguageModel::check_same_model(const TensorSource& weights) const {
    if (weights.model().empty()) return;  // from elsewhere: shapes and names must do
    ModelConfig saved = described(weights);
    // The weights are the same whatever these are.
    saved.type = config_.type;
    saved.method = config_.method;
    saved.telemetry = config_.telemetry;
    saved.recompute = config_.recompute;
    saved.init_std = config_.init_std;
    saved.embedding_init_std = config_.embedding_init_std;
    saved.max_seq_len = config_.max_seq_len;
    saved.attention.qk_norm.gain_bound = config_.attention.qk_norm.gain_bound;
    saved.attention.qk_norm.gain_pull = config_.attention.qk_norm.gain_pull;
    const std::string difference = json_difference(config_json(saved), config_json(config_));
    const bool wants_norm = saved.attention.qk_norm.kind == QkNormKind::kNone &&
                            config_.attention.qk_norm.kind != QkNormKind::kNone;
    EVENKEEL_CHECK_CODE(difference.empty(), ErrorCode::kConfig, "load", weights.origin(),
                        " holds another model: ", difference,
                        wants_norm ? "; evenkeel retrofit gives a trained model QK-norm" : "");
}

void LanguageModel::load_state(const std::string& directory) {
    check_same_model(*open_state(directory, "model"));
    for (const auto& rule : rules_) rule->loading();
    load_parameters(grid_, parameters_, directory, true);
    for (const auto& rule : rules_) rule->loaded();
}

bool LanguageModel::load_initial(const std::string& directory, bool with_moments) {
    if (hugging_face::is_folder(directory)) {
        load_weights(directory);
    } else {
        const auto weights = open_state(directory, "model");
        const TakenSource taken(*weights, config_.attention);
        load_weights(taken);
        if (!taken.changes().empty() && is_main_rank()) {
            log_warning(concat("the model goes on otherwise than ", directory,
                               " was trained: ", taken.changes(), "; its weights are the same"));
        }
    }
    return with_moments && load_moments(parameters_, directory);
}

void LanguageModel::load_weights(const std::string& directory) {
    if (hugging_face::is_folder(directory)) return load_weights(hugging_face::Folder(directory));
    load_weights(*open_state(directory, "model"));
}

void LanguageModel::load_weights(const TensorSource& weights) {
    if (config_.attention.qk_norm.anneal_steps == 0 && is_annealed(weights)) {
        return load_weights(AnnealedSource(weights));
    }
    check_same_model(weights);
    for (const auto& rule : rules_) rule->loading();
    load_parameters(parameters_, weights);
    for (const auto& rule : rules_) rule->loaded();
}

}  // namespace evenkeel
