#include "model/hugging_face/families.h"
#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {
namespace {

constexpr Defaults kDefaults{.vocab_size = 50304,
                             .hidden_size = 2560,
                             .intermediate_size = 6912,
                             .num_layers = 32,
                             .num_heads = 32,
                             .num_kv_heads = 32,
                             .head_dim = 0,
                             .max_positions = 4096,
                             .eps_key = "layer_norm_eps",
                             .eps = 1e-5,
                             .rotary_fraction = 0.25,
                             .partial_rotary = true};

ModelConfig read_config(const ConfigJson& json) {
    ModelConfig config = read_common(json, kDefaults);
    AttentionConfig& attention = config.attention;
    if (attention.head_dim * attention.num_heads != config.width) {
        json.refuse(json.has("head_dim") ? "head_dim" : "num_attention_heads",
                    "want heads that fill hidden_size");
    }
    config.architecture = json.boolean("use_parallel_residual", false) ? Architecture::kParallel
                                                                       : Architecture::kPreNorm;
    config.norm.kind = NormConfig::Kind::kLayerNorm;
    config.norm.bias = true;
    attention.qkv_bias = json.boolean("use_qkv_bias", false);
    if (json.boolean("qk_layernorm", false)) {
        attention.qk_norm.kind = QkNormKind::kLayerNorm;
        attention.qk_norm.gain = QkNormConfig::Gain::kPerHeadChannel;
        attention.qk_norm.eps = config.norm_eps;
    }
    return config;
}

void write_config(const ModelConfig& config, ConfigJson& json) {
    write_common(config, kDefaults, kStableLm, json);
    json.set("use_parallel_residual", config.architecture == Architecture::kParallel);
    json.set("use_qkv_bias", config.attention.qkv_bias);
    json.set("qk_layernorm", config.attention.qk_norm.kind != QkNormKind::kNone);
}

std::vector<TensorMap> tensors(const ModelConfig& config) {
    BlockNames names{.gains = GainNames::kModules};
    if (config.architecture == Architecture::kParallel) names.feed_forward_norm = nullptr;
    return decoder_tensors(config, names);
}

}  // namespace

const Family kStableLm{.name = "stablelm",
                       .architecture = "StableLmForCausalLM",
                       .summary = "StableLM and StableLM 2: LayerNorm, heads that turn in part",
                       .read_config = read_config,
                       .write_config = write_config,
                       .tensors = tensors,
                       .ignores = is_rope_table};

}  // namespace evenkeel::hugging_face
