#include <cmath>

#include "model/hugging_face/families.h"
#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {
namespace {

constexpr double kGlobalTheta = 1e6, kLocalTheta = 1e4;
constexpr Defaults kDefaults{.vocab_size = 262208,
                             .hidden_size = 2304,
                             .intermediate_size = 9216,
                             .num_layers = 26,
                             .num_heads = 8,
                             .num_kv_heads = 4,
                             .head_dim = 256,
                             .max_positions = 131072,
                             .tied = true,
                             .activation_key = "hidden_activation",
                             .activation = "gelu_pytorch_tanh",
                             .rope_theta = kGlobalTheta};
constexpr std::int64_t kDefaultWindow = 4096;
constexpr std::int64_t kDefaultInterval = 6;
constexpr std::int64_t kDefaultScalar = 256;
constexpr std::int64_t kMostLayers = 1 << 20;  // for a list of them; validation knows the limit

// 1 / sqrt(scalar), or 0 for what that says already.
double softmax_scale(double scalar, std::int64_t head_dim) {
    return scalar == static_cast<double>(head_dim) ? 0.0 : 1.0 / std::sqrt(scalar);
}

RopeConfig read_local_rope(const ConfigJson& json) {
    Defaults local = kDefaults;
    local.rope_theta = json.number("rope_local_base_freq", kLocalTheta);
    // Of this section or, in the older form, of that key alone: rope_scaling is the full layers'.
    ConfigJson own;
    if (json.section("rope_parameters").has("sliding_attention")) {
        own.set("rope_parameters", json.section("rope_parameters").section("sliding_attention"));
    }
    return read_rope(own, local, "");
}

// Forms of the rotation's keys that readers of this family take in different ways, or in part.
void check_ropes(const ConfigJson& json) {
    const ConfigJson parameters = json.section("rope_parameters");
    for (const std::string& key : parameters.keys()) {
        if (key == "full_attention" || key == "sliding_attention") continue;
        parameters.refuse(key, "want sections full_attention and sliding_attention alone");
    }
    const ConfigJson scaling = json.section("rope_scaling");
    if (scaling.keys().empty()) return;
    if (!parameters.keys().empty()) {
        json.refuse("rope_scaling", "rope_parameters is there too, and only one of them is wanted");
    }
    if (!scaling.has("rope_type")) {
        json.refuse("rope_scaling", "want its kind under the name rope_type");
    }
}

// The rotations of both kinds of layer, as far as there are layers of both.
void read_ropes(const ConfigJson& json, ModelConfig& config) {
    check_ropes(json);
    if (json.has("original_max_position_embeddings")) {
        json.refuse("original_max_position_embeddings",
                    "want it beside the kind of scaling that it belongs to");
    }
    const RopeConfig local = read_local_rope(json);
    const RopeConfig global = read_rope(json, kDefaults, "full_attention");
    config.attention.rope = global;
    if (config.attention.window == 0) return;
    if (config.global_interval == 0) {
        config.attention.rope = local;
        return;
    }
    if (local.scaling != RopeConfig::Scaling::kNone) {
        json.refuse("rope_parameters",
                    "scaling of the layers with a window is supported only where all have it");
    }
    config.local_rope_theta = local.theta;
}

ModelConfig read_config(const ConfigJson& json) {
    ModelConfig config = read_common(json, kDefaults);
    for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
        if (json.has(key)) json.refuse(key, "Gemma 3 has none, and Gemma 2's is not supported");
    }
    config.architecture = Architecture::kSandwichNorm;
    config.norm.gain_offset = 1.0;
    config.embedding_scale = std::sqrt(static_cast<double>(config.width));
    AttentionConfig& attention = config.attention;
    attention.qkv_bias = json.boolean("attention_bias", false);
    attention.output_bias = attention.qkv_bias;
    attention.qk_norm.kind = QkNormKind::kRms;
    attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
    attention.qk_norm.gain_offset = 1.0;
    attention.qk_norm.eps = config.norm_eps;
    const double scalar = json.number("query_pre_attn_scalar", static_cast<double>(kDefaultScalar));
    if (!(scalar > 0.0)) json.refuse("query_pre_attn_scalar", "want a positive number");
    attention.softmax_scale = softmax_scale(scalar, attention.head_dim);

    std::vector<std::string> types = json.texts("layer_types");
    if (types.empty() && config.num_layers > 0 && config.num_layers <= kMostLayers) {
        const std::int64_t interval = json.integer("sliding_window_pattern", kDefaultInterval);
        if (interval < 1) json.refuse("sliding_window_pattern", "want 1 or more");
        for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
            types.emplace_back((layer + 1) % interval != 0 ? "sliding_attention"
                                                           : "full_attention");
        }
    }
    if (!types.empty()) {
        const std::int64_t window = json.integer("sliding_window", kDefaultWindow);
        read_layer_types(json, types, window, config);
    }
    read_ropes(json, config);
    return config;
}

void write_config(const ModelConfig& config, ConfigJson& json) {
    const AttentionConfig& attention = config.attention;
    EVENKEEL_CHECK_CODE(config.num_layers <= kMostLayers, ErrorCode::kConfig, "export",
                        "model.num_layers: got ", config.num_layers, ", want at most ",
                        kMostLayers);
    write_common(config, kDefaults, kGemma3Text, json);
    json.set("attention_bias", attention.qkv_bias);
    const double scale = attention.softmax_scale;
    json.set("query_pre_attn_scalar",
             scale > 0.0
                 ? static_cast<std::int64_t>(std::llround(std::min(1.0 / (scale * scale), 0x1p62)))
                 : attention.head_dim);
    if (attention.window > 0) json.set("sliding_window", attention.window);
    json.set("layer_types", layer_types(config));
    // Both rotations, in the older form, which all versions read.
    const bool both = config.global_interval > 0 && attention.window > 0;
    json.erase("rope_parameters");
    json.erase("sliding_window_pattern");
    json.set("rope_theta", attention.rope.theta);
    json.set("rope_local_base_freq", both && config.local_rope_theta > 0.0 ? config.local_rope_theta
                                                                           : attention.rope.theta);
    const ConfigJson scaling = rope_scaling(attention.rope);
    if (scaling.keys().empty()) {
        json.set_null("rope_scaling");
    } else {
        json.set("rope_scaling", scaling);
    }
}

}  // namespace

const Family kGemma3Text{
    .name = "gemma3_text",
    .architecture = "Gemma3ForCausalLM",
    .summary =
        "Gemma 3 text models: norms on both sides of the layers, gains stored less 1, "
        "windows with a rotation of their own",
    .read_config = read_config,
    .write_config = write_config,
    .tensors =
        [](const ModelConfig& config) {
            return decoder_tensors(config, {.attention_norm = "input_layernorm",
                                            .feed_forward_norm = "pre_feedforward_layernorm",
                                            .attention_post_norm = "post_attention_layernorm",
                                            .feed_forward_post_norm = "post_feedforward_layernorm",
                                            .gains = GainNames::kForAllHeads});
        },
    .ignores = is_rope_table};

}  // namespace evenkeel::hugging_face
