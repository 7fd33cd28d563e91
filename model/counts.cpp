#include <algorithm>

#include "model/model_config.h"

namespace evenkeel {
namespace {

// Elements of one layer's matrices.
std::int64_t layer_matrix_elements(const ModelConfig& config) {
    const AttentionConfig& a = config.attention;
    const std::int64_t qkv_and_output =
        (2 * a.num_heads + 2 * a.num_kv_heads) * a.head_dim * config.width;
    const std::int64_t matrices = config.activation == Activation::kSwiGlu ? 3 : 2;
    return qkv_and_output + matrices * config.width * config.feed_forward_width;
}

// Elements of the gains of q and k, and of sinks.
std::int64_t head_gain_elements(const AttentionConfig& a) {
    const std::int64_t sinks = a.sink == AttentionConfig::Sink::kLearned ? a.num_heads : 0;
    if (a.qk_norm.kind == QkNormConfig::Kind::kNone) return sinks;
    switch (a.qk_norm.gain) {
        case QkNormConfig::Gain::kPerHeadChannel:
            return sinks + (a.num_heads + a.num_kv_heads) * a.head_dim;
        case QkNormConfig::Gain::kSharedChannel:
            return sinks + 2 * a.head_dim;
        case QkNormConfig::Gain::kPerHeadScalar:
            return sinks + a.num_heads;
        case QkNormConfig::Gain::kScalar:
            return sinks + 1;
        case QkNormConfig::Gain::kNone:
            break;
    }
    return sinks;
}

std::int64_t layer_bias_elements(const ModelConfig& config) {
    const AttentionConfig& a = config.attention;
    const std::int64_t inner = config.activation == Activation::kGelu ? 1 : 2;
    std::int64_t biases = 0;
    if (a.qkv_bias) biases += (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
    if (a.output_bias) biases += config.width;
    if (config.feed_forward_bias) biases += inner * config.feed_forward_width + config.width;
    return biases;
}

std::int64_t layer_gain_elements(const ModelConfig& config) {
    // Two norms or, in nGPT, two rates.
    std::int64_t gains = 2 * config.width + head_gain_elements(config.attention);
    if (config.architecture == Architecture::kNgpt) {
        gains += (config.activation == Activation::kSwiGlu ? 2 : 1) * config.feed_forward_width;
    }
    if (config.sigma_reparam) gains += config.activation == Activation::kSwiGlu ? 7 : 6;  // gamma
    return gains;
}

// Keys that the queries of a sequence of T see, on average.
double mean_visible_keys(const AttentionConfig& config, std::int64_t seq_len) {
    const std::int64_t reach = config.window > 0 ? config.window : seq_len;
    double pairs = 0.0;
    for (std::int64_t t = 0; t < seq_len; ++t) {
        const std::int64_t first = std::max<std::int64_t>(0, t - reach + 1);
        const std::int64_t last = config.causal ? t : std::min(seq_len - 1, t + reach - 1);
        pairs += static_cast<double>(last - first + 1);
    }
    return seq_len == 0 ? 0.0 : pairs / static_cast<double>(seq_len);
}

}  // namespace

std::int64_t parameter_count(const ModelConfig& config) {
    const std::int64_t embeddings =
        (config.tied_embeddings ? 1 : 2) * config.vocab_size * config.width;
    // nGPT's scales of logits, or a final norm.
    const std::int64_t last =
        config.architecture == Architecture::kNgpt ? config.vocab_size : config.width;
    return embeddings + last +
           config.num_layers * (layer_matrix_elements(config) + layer_bias_elements(config) +
                                layer_gain_elements(config));
}

double flops_per_token(const ModelConfig& config, std::int64_t seq_len) {
    const AttentionConfig& a = config.attention;
    const double matrices = static_cast<double>(config.num_layers * layer_matrix_elements(config) +
                                                config.vocab_size * config.width);
    const double per_pair = 12.0 * static_cast<double>(a.num_heads * a.head_dim);
    return 6.0 * matrices +
           static_cast<double>(config.num_layers) * per_pair * mean_visible_keys(a, seq_len);
}

}  // namespace evenkeel
