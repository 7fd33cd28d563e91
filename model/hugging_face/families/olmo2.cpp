#include "model/hugging_face/families.h"
#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {
namespace {

constexpr Defaults kDefaults{.vocab_size = 50304,
                             .hidden_size = 4096,
                             .intermediate_size = 11008,
                             .num_layers = 32,
                             .num_heads = 32,
                             .num_kv_heads = 0,
                             .head_dim = 0,
                             .max_positions = 2048,
                             .eps = 1e-5};

ModelConfig read_config(const ConfigJson& json) {
    ModelConfig config = read_common(json, kDefaults);
    config.architecture = Architecture::kPostNorm;
    config.attention.qkv_bias = json.boolean("attention_bias", false);
    config.attention.output_bias = config.attention.qkv_bias;
    QkNormConfig& norm = config.attention.qk_norm;
    norm.kind = QkNormKind::kRms;
    norm.scope = QkNormConfig::Scope::kFullWidth;
    norm.gain = QkNormConfig::Gain::kPerHeadChannel;
    norm.eps = config.norm_eps;
    return config;
}

void write_config(const ModelConfig& config, ConfigJson& json) {
    EVENKEEL_CHECK_CODE(config.attention.qk_norm.gain == QkNormConfig::Gain::kPerHeadChannel,
                        ErrorCode::kConfig, "export",
                        "model.attention.qk_norm.gain: want per_head_channel: an olmo2 model has "
                        "gains for each channel of the full width");
    write_common(config, kDefaults, kOlmo2, json);
    json.set("attention_bias", config.attention.qkv_bias);
}

}  // namespace

const Family kOlmo2{
    .name = "olmo2",
    .architecture = "Olmo2ForCausalLM",
    .summary = "OLMo 2: norms after the layers, one RMSNorm over all queries or keys of a token",
    .read_config = read_config,
    .write_config = write_config,
    .tensors =
        [](const ModelConfig& config) {
            return decoder_tensors(config, {.attention_norm = nullptr,
                                            .feed_forward_norm = nullptr,
                                            .attention_post_norm = "post_attention_layernorm",
                                            .feed_forward_post_norm = "post_feedforward_layernorm",
                                            .gains = GainNames::kFullWidth});
        },
    .ignores = is_rope_table};

}  // namespace evenkeel::hugging_face
