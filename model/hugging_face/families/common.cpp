#include "model/hugging_face/families/common.h"

#include <algorithm>

#include "framework/error.h"

namespace evenkeel::hugging_face {
namespace {

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

void refuse_foreign(const ConfigJson& json) {
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
        if (json.has(key) && json.number(key) != 0.0) {
            json.refuse(key, "mixtures of experts are not supported");
        }
    }
    if (json.has("quantization_config")) {
        json.refuse("quantization_config", "want weights in fp32, bf16 or fp16");
    }
    if (json.has("per_layer_config")) {
        json.refuse("per_layer_config", "layers that differ in their sizes are not supported");
    }
    for (const char* key :
         {"is_encoder_decoder", "add_cross_attention", "use_bidirectional_attention"}) {
        json.require(key, false, "a language model's queries see only earlier tokens of its own");
    }
    if (!json.boolean("is_causal", true)) {
        json.refuse("is_causal", "a language model's queries see no later token");
    }
    if (json.has("pruned_heads") && !json.section("pruned_heads").keys().empty()) {
        json.refuse("pruned_heads", "layers with fewer heads are not supported");
    }
    for (const std::string& architecture : json.texts("architectures")) {
        if (!architecture.ends_with("ForCausalLM")) {
            json.refuse("architectures", "want a language model (...ForCausalLM)");
        }
    }
}

Activation read_activation(const ConfigJson& json, const Defaults& defaults) {
    const std::string name = json.text(defaults.activation_key, defaults.activation);
    if (name == "silu" || name == "swish") return Activation::kSwiGlu;
    // Two names of GELU's tanh form.
    if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeGlu;
    json.refuse(defaults.activation_key, "supported are silu and gelu_pytorch_tanh");
}

}  // namespace

ModelConfig read_common(const ConfigJson& json, const Defaults& defaults) {
    refuse_foreign(json);
    ModelConfig config;
    AttentionConfig& attention = config.attention;
    config.vocab_size = json.integer("vocab_size", defaults.vocab_size);
    config.width = json.integer("hidden_size", defaults.hidden_size);
    config.feed_forward_width = json.integer("intermediate_size", defaults.intermediate_size);
    config.num_layers = json.integer("num_hidden_layers", defaults.num_layers);
    config.max_seq_len = json.integer("max_position_embeddings", defaults.max_positions);
    config.tied_embeddings = json.boolean("tie_word_embeddings", defaults.tied);
    attention.num_heads = json.integer("num_attention_heads", defaults.num_heads);
    if (attention.num_heads < 1) json.refuse("num_attention_heads", "want 1 or more");
    attention.num_kv_heads =
        json.integer("num_key_value_heads",
                     defaults.num_kv_heads > 0 ? defaults.num_kv_heads : attention.num_heads);
    attention.head_dim = json.integer(
        "head_dim", defaults.head_dim > 0 ? defaults.head_dim : config.width / attention.num_heads);
    attention.qk_norm.kind = QkNormKind::kNone;
    attention.rope = read_rope(json, defaults, "");
    config.activation = read_activation(json, defaults);
    config.norm_eps = json.number(defaults.eps_key, defaults.eps);
    return config;
}

void write_common(const ModelConfig& config,
                  const Defaults& defaults,
                  const Family& family,
                  ConfigJson& json) {
    EVENKEEL_CHECK_CODE(config.activation != Activation::kGelu, ErrorCode::kConfig, "export",
                        "model.activation: got gelu, which has no gate, want swiglu or geglu");
    json.set("architectures", std::vector<std::string>{family.architecture});
    json.set("model_type", family.name);
    json.set("vocab_size", config.vocab_size);
    json.set("hidden_size", config.width);
    json.set("intermediate_size", config.feed_forward_width);
    json.set("num_hidden_layers", config.num_layers);
    json.set("max_position_embeddings", config.max_seq_len);
    json.set("tie_word_embeddings", config.tied_embeddings);
    json.set("num_attention_heads", config.attention.num_heads);
    json.set("num_key_value_heads", config.attention.num_kv_heads);
    json.set("head_dim", config.attention.head_dim);
    json.set(defaults.activation_key,
             config.activation == Activation::kSwiGlu ? "silu" : "gelu_pytorch_tanh");
    json.set(defaults.eps_key, config.norm_eps);
    write_rope(config.attention.rope, defaults, json);
}

void read_layer_types(const ConfigJson& json,
                      const std::vector<std::string>& types,
                      std::int64_t window,
                      ModelConfig& config) {
    const auto layers = static_cast<std::int64_t>(types.size());
    if (layers != config.num_layers) {
        json.refuse("layer_types", concat("want a type for each of the ", config.num_layers,
                                          " layers of num_hidden_layers"));
    }
    const auto first = std::find(types.begin(), types.end(), kFull) - types.begin();
    for (std::int64_t layer = 0; layer < layers; ++layer) {
        const bool full = first < layers && (layer + 1) % (first + 1) == 0;
        if (types[static_cast<std::size_t>(layer)] != (full ? kFull : kSliding)) {
            json.refuse("layer_types",
                        concat("want sliding_attention with full_attention in every n-th layer; "
                               "layer ",
                               layer, " is out of that order"));
        }
    }
    config.global_interval = 0;
    config.attention.window = 0;
    if (first == 0) return;  // all are full
    if (window < 1) json.refuse("sliding_window", "want 1 or more, as layers have it");
    config.attention.window = window;
    if (first < layers) config.global_interval = first + 1;
}

std::vector<std::string> layer_types(const ModelConfig& config) {
    std::vector<std::string> types;
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        types.emplace_back(config.layer_attention(layer).window > 0 ? kSliding : kFull);
    }
    return types;
}

bool is_rope_table(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

}  // namespace evenkeel::hugging_face
