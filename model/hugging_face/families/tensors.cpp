// The tensors of a decoder under the names that nearly all families share.
#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {
namespace {

using Gain = QkNormConfig::Gain;

// Collects the maps of one model.
class Mapper {
  public:
    Mapper(const ModelConfig& config, const BlockNames& names) : config_(config), names_(names) {}

    void weight(const std::string& ours, const Shape& shape, const std::string& theirs) {
        maps_.push_back(same(ours, shape, theirs + ".weight"));
    }
    void norm(const std::string& ours, const std::string& theirs) {
        weight(ours, {config_.width}, theirs);
        if (!config_.norm.bias) return;
        maps_.push_back(same(ours + "_bias", {config_.width}, theirs + ".bias"));
    }
    // A linear layer, whose bias, if it has one, is of the rows.
    void linear(const std::string& ours, const Shape& shape, const std::string& theirs, bool bias) {
        weight(ours, shape, theirs);
        if (bias) maps_.push_back(same(ours + "_bias", {shape[0]}, theirs + ".bias"));
    }
    void attention(std::int64_t layer);
    void feed_forward(std::int64_t layer);
    void block(std::int64_t layer);
    void model();
    std::vector<TensorMap> take() { return std::move(maps_); }

  private:
    void gain(const std::string& ours,
              const std::string& theirs,
              const QkNormConfig& norm,
              std::int64_t heads,
              std::int64_t head_dim);
    // The maps from `first` on are of rows or channels that turn.
    void turn(std::size_t first, const AttentionConfig& attention);

    const ModelConfig& config_;
    const BlockNames& names_;
    std::vector<TensorMap> maps_;
};

void Mapper::turn(std::size_t first, const AttentionConfig& attention) {
    const RopeConfig& rope = attention.rope;
    const std::int64_t rotary_dim = rope.rotary_dim(attention.head_dim);
    if (rope.layout == names_.layout || rotary_dim == 0) return;
    for (std::size_t i = first; i < maps_.size(); ++i) {
        // Weights [H D, C] have a channel a row; biases [H D] and gains [H, D] or [D] one an element.
        const bool is_weight = maps_[i].shape.size() == 2 && maps_[i].shape[1] == config_.width &&
                               !maps_[i].ours.ends_with("_gain");
        maps_[i] = with_rotary_layout(maps_[i], attention.head_dim, rotary_dim,
                                      is_weight ? config_.width : 1, rope.layout, names_.layout);
    }
}

void Mapper::gain(const std::string& ours,
                  const std::string& theirs,
                  const QkNormConfig& norm,
                  std::int64_t heads,
                  std::int64_t head_dim) {
    const bool shared = norm.gain == Gain::kSharedChannel;
    const Shape shape = shared ? Shape{head_dim} : Shape{heads, head_dim};
    switch (names_.gains) {
        case GainNames::kNone:
            return;
        case GainNames::kForAllHeads:
            maps_.push_back(shared ? same(ours, shape, theirs + "_norm.weight")
                                   : repeated(ours, shape, theirs + "_norm.weight"));
            return;
        case GainNames::kAsOurs:
            if (norm.gain == Gain::kPerHeadScalar || norm.gain == Gain::kScalar) {
                // A factor of the logits, which is the queries' alone.
                const Shape one_each{norm.gain == Gain::kScalar ? 1 : heads};
                if (theirs.ends_with("q")) {
                    maps_.push_back(same(ours, one_each, theirs + "_norm.weight"));
                }
                return;
            }
            [[fallthrough]];
        case GainNames::kPerHead:
            maps_.push_back(same(ours, shape, theirs + "_norm.weight"));
            return;
        case GainNames::kFullWidth:
            maps_.push_back(reshaped(ours, shape, theirs + "_norm.weight", {heads * head_dim}));
            return;
        case GainNames::kModules: {
            std::vector<std::string> modules;
            for (std::int64_t head = 0; head < heads; ++head) {
                modules.push_back(
                    concat(theirs, "_layernorm.norms.", std::to_string(head), ".weight"));
            }
            maps_.push_back(stacked(ours, shape, modules));
            return;
        }
    }
}

void Mapper::attention(std::int64_t layer) {
    const AttentionConfig attention = config_.layer_attention(layer);
    const std::int64_t D = attention.head_dim, C = config_.width;
    const std::int64_t query = attention.num_heads * D, key = attention.num_kv_heads * D;
    const std::string ours = concat("layers.", std::to_string(layer), ".attention.");
    const std::string theirs = concat("model.layers.", std::to_string(layer), ".self_attn.");
    const std::size_t first = maps_.size();
    linear(ours + "wq", {query, C}, theirs + "q_proj", attention.qkv_bias);
    linear(ours + "wk", {key, C}, theirs + "k_proj", attention.qkv_bias);
    if (attention.qk_norm.kind != QkNormKind::kNone && attention.qk_norm.gain != Gain::kNone) {
        gain(ours + "q_gain", theirs + "q", attention.qk_norm, attention.num_heads, D);
        gain(ours + "k_gain", theirs + "k", attention.qk_norm, attention.num_kv_heads, D);
    }
    turn(first, attention);
    linear(ours + "wv", {key, C}, theirs + "v_proj", attention.qkv_bias);
    linear(ours + "wo", {C, query}, theirs + "o_proj", attention.output_bias);
    if (attention.sink == AttentionConfig::Sink::kLearned) {
        maps_.push_back(same(ours + "sink", {attention.num_heads}, theirs + "sinks"));
    }
}

void Mapper::feed_forward(std::int64_t layer) {
    const std::int64_t C = config_.width, F = config_.feed_forward_width;
    const std::string ours = concat("layers.", std::to_string(layer), ".feed_forward.");
    const std::string theirs = concat("model.layers.", std::to_string(layer), ".mlp.");
    const bool bias = config_.feed_forward_bias;
    if (config_.activation != Activation::kGelu) {
        linear(ours + "w_gate", {F, C}, theirs + "gate_proj", bias);
    }
    linear(ours + "w_up", {F, C}, theirs + "up_proj", bias);
    linear(ours + "w_down", {C, F}, theirs + "down_proj", bias);
}

void Mapper::block(std::int64_t layer) {
    const std::string ours = concat("layers.", std::to_string(layer), ".");
    const std::string theirs = concat("model.layers.", std::to_string(layer), ".");
    const auto named = [&](const char* name, const char* their_name) {
        if (their_name != nullptr) norm(ours + name, theirs + their_name);
    };
    named("attention_norm", names_.attention_norm);
    attention(layer);
    named("attention_post_norm", names_.attention_post_norm);
    named("feed_forward_norm", names_.feed_forward_norm);
    feed_forward(layer);
    named("feed_forward_post_norm", names_.feed_forward_post_norm);
}

void Mapper::model() {
    const Shape table{config_.vocab_size, config_.width};
    weight("embedding", table, "model.embed_tokens");
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) block(layer);
    norm("final_norm", "model.norm");
    if (!config_.tied_embeddings) weight("output", table, "lm_head");
}

}  // namespace

std::vector<TensorMap> decoder_tensors(const ModelConfig& config, const BlockNames& names) {
    Mapper mapper(config, names);
    mapper.model();
    return mapper.take();
}

}  // namespace evenkeel::hugging_face
