#include "framework/error.h"
#include "model/hugging_face/families.h"

namespace evenkeel::hugging_face {
namespace {

ModelConfig read_llama(const ConfigJson& json) {
    ModelConfig config;
    config.vocab_size = json.integer("vocab_size");
    config.num_layers = json.integer("num_hidden_layers");
    config.width = json.integer("hidden_size");
    config.feed_forward_width = json.integer("intermediate_size");
    config.max_seq_len = json.integer("max_position_embeddings", 2048);
    config.norm_eps = json.number("rms_norm_eps", 1e-6);
    config.tied_embeddings = json.boolean("tie_word_embeddings", false);
    json.require("hidden_act", "silu", "want \"silu\"");
    json.require("attention_bias", false, "biases of these models are not read");
    json.require("mlp_bias", false, "biases of these models are not read");
    if (json.has("rope_scaling")) json.refuse("rope_scaling", "want null");
    AttentionConfig& attention = config.attention;
    attention.num_heads = json.integer("num_attention_heads");
    attention.num_kv_heads = json.integer("num_key_value_heads", attention.num_heads);
    if (!json.has("head_dim") && attention.num_heads < 1) {
        json.refuse("num_attention_heads", "want 1 or more");
    }
    attention.head_dim =
        json.has("head_dim") ? json.integer("head_dim") : config.width / attention.num_heads;
    attention.rope.theta = json.number("rope_theta", 10000.0);
    attention.qk_norm.kind = QkNormKind::kNone;
    return config;
}

void write_llama(const ModelConfig& config, ConfigJson& json) {
    const AttentionConfig& attention = config.attention;
    json.set("architectures", std::vector<std::string>{kLlama.architecture});
    json.set("model_type", kLlama.name);
    json.set("vocab_size", config.vocab_size);
    json.set("num_hidden_layers", config.num_layers);
    json.set("hidden_size", config.width);
    json.set("intermediate_size", config.feed_forward_width);
    json.set("max_position_embeddings", config.max_seq_len);
    json.set("rms_norm_eps", config.norm_eps);
    json.set("tie_word_embeddings", config.tied_embeddings);
    json.set("hidden_act", "silu");
    json.set("num_attention_heads", attention.num_heads);
    json.set("num_key_value_heads", attention.num_kv_heads);
    json.set("head_dim", attention.head_dim);
    json.set("rope_theta", attention.rope.theta);
}

std::vector<TensorMap> llama_tensors(const ModelConfig& config) {
    const AttentionConfig& attention = config.attention;
    const RopeConfig& rope = attention.rope;
    const std::int64_t C = config.width, F = config.feed_forward_width, V = config.vocab_size;
    const std::int64_t Q = attention.num_heads * attention.head_dim;
    const std::int64_t KV = attention.num_kv_heads * attention.head_dim;
    const auto rotary = [&](const TensorMap& map) {
        return with_rotary_layout(map, attention.head_dim, rope.rotary_dim(attention.head_dim), C,
                                  rope.layout, RopeLayout::kHalfSplit);
    };
    std::vector<TensorMap> maps = {same("embedding", {V, C}, "model.embed_tokens.weight")};
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
        const std::string ours = concat("layers.", i, "."), theirs = "model." + ours;
        const auto add = [&](const TensorMap& map) { maps.push_back(map); };
        add(same(ours + "attention_norm", {C}, theirs + "input_layernorm.weight"));
        add(rotary(same(ours + "attention.wq", {Q, C}, theirs + "self_attn.q_proj.weight")));
        add(rotary(same(ours + "attention.wk", {KV, C}, theirs + "self_attn.k_proj.weight")));
        add(same(ours + "attention.wv", {KV, C}, theirs + "self_attn.v_proj.weight"));
        add(same(ours + "attention.wo", {C, Q}, theirs + "self_attn.o_proj.weight"));
        add(same(ours + "feed_forward_norm", {C}, theirs + "post_attention_layernorm.weight"));
        add(same(ours + "feed_forward.w_gate", {F, C}, theirs + "mlp.gate_proj.weight"));
        add(same(ours + "feed_forward.w_up", {F, C}, theirs + "mlp.up_proj.weight"));
        add(same(ours + "feed_forward.w_down", {C, F}, theirs + "mlp.down_proj.weight"));
    }
    maps.push_back(same("final_norm", {C}, "model.norm.weight"));
    if (!config.tied_embeddings) maps.push_back(same("output", {V, C}, "lm_head.weight"));
    return maps;
}

bool is_rope_table(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

}  // namespace

const Family kLlama{"llama",     "LlamaForCausalLM", "Llama 1 to 3", read_llama,
                    write_llama, llama_tensors,      is_rope_table};

}  // namespace evenkeel::hugging_face
