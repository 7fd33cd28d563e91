#include <algorithm>

#include "model/model_config.h"

namespace evenkeel {
namespace {

// Elements of one layer's matrices.
std::int64_t layer_matrix_elements(const ModelConfig& config) {
    const AttentionConfig& a = config.attention;
    const std::int64_t qkv_and_output =
        (2 * a.num_heads + 2 * a.num_kv_heads) * a.head_dim * config.width;
    const std::int64_t matrices = is_gated(config.activation) ? 3 : 2;
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
    const std::int64_t inner = is_gated(config.activation) ? 2 : 1;
    std::int64_t biases = 0;
    if (a.qkv_bias) biases += (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
    if (a.output_bias) biases += config.width;
    if (config.feed_forward_bias) biases += inner * config.feed_forward_width + config.width;
    return biases;
}

// A norm's gain, and its bias if it has one.
std::int64_t norm_elements(const ModelConfig& config) {
    return (config.norm.bias ? 2 : 1) * config.width;
}

std::int64_t layer_gain_elements(const ModelConfig& config, std::int64_t layer) {
    std::int64_t gains = stream_norms(config.architecture) * norm_elements(config) +
                         head_gain_elements(config.layer_attention(layer));
    if (config.architecture == Architecture::kNgpt) {
        // Two rates, and the scales of what leads into the feed-forward layer.
        gains +=
            2 * config.width + (is_gated(config.activation) ? 2 : 1) * config.feed_forward_width;
    }
    if (config.sigma_reparam) gains += is_gated(config.activation) ? 7 : 6;  // gamma
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

std::int64_t stream_norms(Architecture architecture) {
    switch (architecture) {
        case Architecture::kPreNorm:
        case Architecture::kPostNorm:
            return 2;
        case Architecture::kSandwichNorm:
            return 4;
        case Architecture::kParallel:
            return 1;
        case Architecture::kNgpt:
            break;
    }
    return 0;
}

std::int64_t parameter_count(const ModelConfig& config) {
    const std::int64_t embeddings =
        (config.tied_embeddings ? 1 : 2) * config.vocab_size * config.width;
    // nGPT's scales of logits, or a final norm.
    std::int64_t elements =
        embeddings +
        config.num_layers * (layer_matrix_elements(config) + layer_bias_elements(config)) +
        (config.architecture == Architecture::kNgpt ? config.vocab_size : norm_elements(config));
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        elements += layer_gain_elements(config, layer);
    }
    return elements;
}

double flops_per_token(const ModelConfig& config, std::int64_t seq_len) {
    const AttentionConfig& a = config.attention;
    const double matrices = static_cast<double>(config.num_layers * layer_matrix_elements(config) +
                                                config.vocab_size * config.width);
    const double per_pair = 12.0 * static_cast<double>(a.num_heads * a.head_dim);
    double keys = 0.0;
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        keys += mean_visible_keys(config.layer_attention(layer), seq_len);
    }
    return 6.0 * matrices + per_pair * keys;
}

double recomputed_flops_per_token(const ModelConfig& config, std::int64_t seq_len) {
    if (config.recompute == Recompute::kNone || config.recompute == Recompute::kElementwise) {
        return 0.0;
    }
    const AttentionConfig& a = config.attention;
    const auto product = [&](std::int64_t outputs, std::int64_t inputs) {
        return 2.0 * static_cast<double>(outputs) * static_cast<double>(inputs);
    };
    const std::int64_t queries = a.num_heads * a.head_dim, keys = a.num_kv_heads * a.head_dim;
    double layer = product(queries + 2 * keys, config.width);
    if (config.recompute == Recompute::kFull) {
        const bool parallel = config.architecture == Architecture::kParallel;
        const bool pre_norm = config.architecture == Architecture::kPreNorm;
        const std::int64_t inner = is_gated(config.activation) ? 2 : 1;
        layer += product(inner * config.feed_forward_width, config.width);
        // Only where backward reads what they return.
        if (!parallel) layer += product(config.width, queries);
        if (!parallel && !pre_norm) layer += product(config.width, config.feed_forward_width);
    }
    double flops = static_cast<double>(config.num_layers) * layer;
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
        flops += 4.0 * static_cast<double>(queries) *
                 mean_visible_keys(config.layer_attention(i), seq_len);
    }
    return flops;
}

}  // namespace evenkeel
