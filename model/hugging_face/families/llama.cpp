#include "model/hugging_face/families.h"
#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {
namespace {

constexpr Defaults kDefaults{.vocab_size = 32000,
                             .hidden_size = 4096,
                             .intermediate_size = 11008,
                             .num_layers = 32,
                             .num_heads = 32,
                             .num_kv_heads = 0,
                             .head_dim = 0,
                             .max_positions = 2048};

ModelConfig read_config(const ConfigJson& json) {
    ModelConfig config = read_common(json, kDefaults);
    config.attention.qkv_bias = json.boolean("attention_bias", false);
    config.attention.output_bias = config.attention.qkv_bias;
    config.feed_forward_bias = json.boolean("mlp_bias", false);
    const std::vector<std::string> types = json.texts("layer_types");
    if (!types.empty()) read_layer_types(json, types, 0, config);
    return config;
}

void write_config(const ModelConfig& config, ConfigJson& json) {
    write_common(config, kDefaults, kLlama, json);
    json.set("attention_bias", config.attention.qkv_bias);
    json.set("mlp_bias", config.feed_forward_bias);
}

}  // namespace

const Family kLlama{
    .name = "llama",
    .architecture = "LlamaForCausalLM",
    .summary = "Llama 1 to 3 and what is built like it",
    .read_config = read_config,
    .write_config = write_config,
    .tensors = [](const ModelConfig& config) { return decoder_tensors(config, {}); },
    .ignores = is_rope_table};

}  // namespace evenkeel::hugging_face
