// What no family of others can say: this project's own settings, with Python code that runs them.
#include "framework/error.h"
#include "model/hugging_face/families.h"
#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {

// The files of remote_code/.
namespace remote_code {
extern const char k_configuration[];
extern const char k_modeling[];
}  // namespace remote_code

namespace {

constexpr const char* kSettings = "evenkeel";

void check(const ModelConfig& config) {
    const auto refuse = [](bool right, const char* key, const char* reason) {
        EVENKEEL_CHECK_CODE(right, ErrorCode::kConfig, "evenkeel model", "model.", key, ": ",
                            reason);
    };
    refuse(config.architecture != Architecture::kNgpt, "architecture",
           "got ngpt, which the Python code does not have");
    refuse(!config.sigma_reparam, "sigma_reparam", "got true, which the Python code does not have");
    refuse(config.attention.qk_norm.anneal_steps == 0, "attention.qk_norm.anneal_steps",
           "want 0: the Python code has the norm as it is once it has come in");
}

ModelConfig read_config(const ConfigJson& json) {
    if (!json.has(kSettings)) json.refuse(kSettings, "want the settings of the model");
    ModelConfig config;
    parse_config([&](ConfigVisitor& v) { config.visit_fields(v); }, json.raw(kSettings),
                 concat(json.origin(), ": ", kSettings));
    check(config);
    return config;
}

void write_config(const ModelConfig& config, ConfigJson& json) {
    check(config);
    ModelConfig written = config;
    ConfigJson code;
    code.set("AutoConfig", "configuration_evenkeel.EvenkeelConfig");
    code.set("AutoModelForCausalLM", "modeling_evenkeel.EvenkeelForCausalLM");
    json.set("architectures", std::vector<std::string>{kEvenkeel.architecture});
    json.set("model_type", kEvenkeel.name);
    json.set("auto_map", code);
    // What the origin said of these, the settings say.
    for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq",
                            "partial_rotary_factor", "sliding_window", "layer_types"}) {
        json.erase(key);
    }
    // Sizes by their usual names too, for programs that look no further.
    json.set("vocab_size", config.vocab_size);
    json.set("hidden_size", config.width);
    json.set("intermediate_size", config.feed_forward_width);
    json.set("num_hidden_layers", config.num_layers);
    json.set("max_position_embeddings", config.max_seq_len);
    json.set("num_attention_heads", config.attention.num_heads);
    json.set("num_key_value_heads", config.attention.num_kv_heads);
    json.set("head_dim", config.attention.head_dim);
    json.set(kSettings,
             ConfigJson::parse(to_json([&](ConfigVisitor& v) { written.visit_fields(v); }),
                               "model settings"));
}

std::vector<TensorMap> tensors(const ModelConfig& config) {
    const Architecture kind = config.architecture;
    const bool before = kind != Architecture::kPostNorm;
    const bool after = kind == Architecture::kPostNorm || kind == Architecture::kSandwichNorm;
    const bool both = before && kind != Architecture::kParallel;
    return decoder_tensors(config,
                           {.attention_norm = before ? "attention_norm" : nullptr,
                            .feed_forward_norm = both ? "feed_forward_norm" : nullptr,
                            .attention_post_norm = after ? "attention_post_norm" : nullptr,
                            .feed_forward_post_norm = after ? "feed_forward_post_norm" : nullptr,
                            .gains = GainNames::kAsOurs,
                            .layout = config.attention.rope.layout});
}

std::vector<std::pair<std::string, std::string>> files() {
    return {{"configuration_evenkeel.py", remote_code::k_configuration},
            {"modeling_evenkeel.py", remote_code::k_modeling}};
}

}  // namespace

const Family kEvenkeel{
    .name = "evenkeel",
    .architecture = "EvenkeelForCausalLM",
    .summary =
        "any model trained here, but for nGPT and sigma_reparam, with Python code that "
        "transformers runs with trust_remote_code",
    .read_config = read_config,
    .write_config = write_config,
    .tensors = tensors,
    .files = files};

}  // namespace evenkeel::hugging_face
