#include "model/hugging_face/families.h"
#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {
namespace {

constexpr Defaults kDefaults{.vocab_size = 256000,
                             .hidden_size = 8192,
                             .intermediate_size = 22528,
                             .num_layers = 40,
                             .num_heads = 64,
                             .num_kv_heads = 0,
                             .head_dim = 0,
                             .max_positions = 8192,
                             .tied = true,
                             .eps_key = "layer_norm_eps",
                             .eps = 1e-5,
                             .rope_theta = 500000.0,
                             .layout = RopeLayout::kInterleaved};
constexpr double kDefaultLogitScale = 0.0625;

ModelConfig read_config(const ConfigJson& json) {
    ModelConfig config = read_common(json, kDefaults);
    AttentionConfig& attention = config.attention;
    config.architecture = Architecture::kParallel;
    config.norm.kind = NormConfig::Kind::kLayerNorm;
    config.logit_scale = json.number("logit_scale", kDefaultLogitScale);
    attention.qkv_bias = json.boolean("attention_bias", false);
    attention.output_bias = attention.qkv_bias;
    if (json.boolean("use_qk_norm", false)) {
        attention.qk_norm.kind = QkNormKind::kLayerNorm;
        attention.qk_norm.gain = QkNormConfig::Gain::kPerHeadChannel;
        attention.qk_norm.eps = config.norm_eps;
    }
    return config;
}

void write_config(const ModelConfig& config, ConfigJson& json) {
    write_common(config, kDefaults, kCohere, json);
    json.set("logit_scale", config.logit_scale);
    json.set("attention_bias", config.attention.qkv_bias);
    json.set("use_qk_norm", config.attention.qk_norm.kind != QkNormKind::kNone);
}

}  // namespace

const Family kCohere{
    .name = "cohere",
    .architecture = "CohereForCausalLM",
    .summary =
        "Command R and R+: both layers of a block beside each other, LayerNorm, gains of "
        "queries and keys for each head",
    .read_config = read_config,
    .write_config = write_config,
    .tensors =
        [](const ModelConfig& config) {
            return decoder_tensors(config, {.feed_forward_norm = nullptr,
                                            .gains = GainNames::kPerHead,
                                            .layout = RopeLayout::kInterleaved});
        },
    .ignores = is_rope_table};

}  // namespace evenkeel::hugging_face
