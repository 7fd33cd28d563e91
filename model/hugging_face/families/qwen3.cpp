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
                             .head_dim = 128,
                             .max_positions = 32768};

ModelConfig read_config(const ConfigJson& json) {
    ModelConfig config = read_common(json, kDefaults);
    read_qwen_window(json, config);
    config.attention.qkv_bias = json.boolean("attention_bias", false);
    config.attention.output_bias = config.attention.qkv_bias;
    QkNormConfig& norm = config.attention.qk_norm;
    norm.kind = QkNormKind::kRms;
    norm.gain = QkNormConfig::Gain::kSharedChannel;
    norm.eps = config.norm_eps;
    return config;
}

void write_config(const ModelConfig& config, ConfigJson& json) {
    write_common(config, kDefaults, kQwen3, json);
    write_qwen_window(config, json);
    json.set("attention_bias", config.attention.qkv_bias);
}

}  // namespace

const Family kQwen3{
    .name = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .summary = "Qwen 3: RMSNorm on queries and keys, with gains that all heads share",
    .read_config = read_config,
    .write_config = write_config,
    .tensors =
        [](const ModelConfig& config) {
            return decoder_tensors(config, {.gains = GainNames::kForAllHeads});
        },
    .ignores = is_rope_table};

}  // namespace evenkeel::hugging_face
