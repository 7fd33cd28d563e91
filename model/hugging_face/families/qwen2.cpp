#include "model/hugging_face/families.h"
#include "model/hugging_face/families/common.h"
#include "model/hugging_face/families/qwen.h"

namespace evenkeel::hugging_face {
namespace {

constexpr Defaults kDefaults{.vocab_size = 151936,
                             .hidden_size = 4096,
                             .intermediate_size = 22016,
                             .num_layers = 32,
                             .num_heads = 32,
                             .num_kv_heads = 32,
                             .head_dim = 0,
                             .max_positions = 32768};

ModelConfig read_config(const ConfigJson& json) {
    ModelConfig config = read_common(json, kDefaults);
    read_qwen_window(json, config);
    config.attention.qkv_bias = true;
    return config;
}

void write_config(const ModelConfig& config, ConfigJson& json) {
    write_common(config, kDefaults, kQwen2, json);
    write_qwen_window(config, json);
}

}  // namespace

const Family kQwen2{
    .name = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .summary = "Qwen 2 and 2.5: biases of queries, keys and values",
    .read_config = read_config,
    .write_config = write_config,
    .tensors = [](const ModelConfig& config) { return decoder_tensors(config, {}); },
    .ignores = is_rope_table};

}  // namespace evenkeel::hugging_face
