// Saving, loading and describing a language model.
#include "framework/run_state.h"
#include "framework/safetensors_source.h"
#include "model/hugging_face/folder.h"
#include "model/language_model.h"
#include "model/weight_rule.h"
#include "parallel/sharded_state.h"

namespace evenkeel {
namespace {

// The metadata key under which model.safetensors carries the description.
constexpr const char* kModelKey = "model";

std::string weights_file(const std::string& directory) { return directory + "/model.safetensors"; }

std::string config_json(ModelConfig config) {
    return to_json([&](ConfigVisitor& v) { config.visit_fields(v); });
}

}  // namespace

std::string description_of(const ModelConfig& config) {
    ModelConfig described = config;
    described.telemetry = true;  // watching changes nothing
    described.method.clear();    // its settings are there
    return config_json(described);
}

std::string LanguageModel::description() const { return description_of(config_); }

void LanguageModel::save_state(const std::string& directory) {
    save_parameters(grid_, parameters_, directory, {{kModelKey, description()}});
}

// The description is checked before the tensors: what differs in the configuration says more than a shape.
void LanguageModel::check_same_model(const TensorSource& weights) const {
    const std::string description = weights.model();
    if (description.empty()) return;  // from elsewhere: shapes and names must do
    ModelConfig saved;
    parse_config([&](ConfigVisitor& v) { saved.visit_fields(v); }, description, weights.origin());
    // The weights are the same whatever these are.
    saved.type = config_.type;
    saved.method = config_.method;
    saved.telemetry = config_.telemetry;
    saved.init_std = config_.init_std;
    saved.embedding_init_std = config_.embedding_init_std;
    saved.max_seq_len = config_.max_seq_len;
    saved.attention.qk_norm.gain_bound = config_.attention.qk_norm.gain_bound;
    saved.attention.qk_norm.gain_pull = config_.attention.qk_norm.gain_pull;
    const std::string difference = json_difference(config_json(saved), config_json(config_));
    EVENKEEL_CHECK_CODE(difference.empty(), ErrorCode::kConfig, "load", weights.origin(),
                        " holds another model: ", difference);
}

void LanguageModel::load_state(const std::string& directory) {
    check_same_model(SafetensorsSource(weights_file(directory)));
    for (const auto& rule : rules_) rule->loading();
    load_parameters(grid_, parameters_, directory, true);
    for (const auto& rule : rules_) rule->loaded();
}

bool LanguageModel::load_initial(const std::string& directory, bool with_moments) {
    load_weights(directory);
    return with_moments && load_moments(parameters_, directory);
}

void LanguageModel::load_weights(const std::string& directory) {
    if (hugging_face::is_folder(directory)) return load_weights(hugging_face::Folder(directory));
    load_weights(SafetensorsSource(weights_file(directory)));
}

void LanguageModel::load_weights(const TensorSource& weights) {
    check_same_model(weights);
    for (const auto& rule : rules_) rule->loading();
    load_parameters(parameters_, weights);
    for (const auto& rule : rules_) rule->loaded();
}

}  // namespace evenkeel
