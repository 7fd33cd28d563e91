#include "model/hugging_face/families.h"
#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {
namespace {

constexpr Defaults kDefaults{.vocab_size = 32000,
                             .hidden_size = 4096,
                             .intermediate_size = 14336,
                             .num_layers = 32,
                             .num_heads = 32,
                             .num_kv_heads = 8,
                             .head_dim = 0,
                             .max_positions = 131072};
constexpr std::int64_t kDefaultWindow = 4096;

ModelConfig read_config(const ConfigJson& json) {
    ModelConfig config = read_common(json, kDefaults);
    if (json.has("layer_types")) {
        json.refuse("layer_types",
                    "Mistral's layers are all alike; what this file means depends on the program "
                    "that reads it");
    }
    // Null is no window; a missing key is the default.
    if (json.raw("sliding_window") == "null") return config;
    config.attention.window = json.integer("sliding_window", kDefaultWindow);
    if (config.attention.window < 1) {
        json.refuse("sliding_window", "want 1 or more, or null for none");
    }
    return config;
}

void write_config(const ModelConfig& config, ConfigJson& json) {
    write_common(config, kDefaults, kMistral, json);
    if (config.attention.window > 0) {
        json.set("sliding_window", config.attention.window);
    } else {
        json.set_null("sliding_window");
    }
}

}  // namespace

const Family kMistral{
    .name = "mistral",
    .architecture = "MistralForCausalLM",
    .summary = "Mistral 7B and what is built like it: a sliding window",
    .read_config = read_config,
    .write_config = write_config,
    .tensors = [](const ModelConfig& config) { return decoder_tensors(config, {}); },
    .ignores = is_rope_table};

}  // namespace evenkeel::hugging_face
