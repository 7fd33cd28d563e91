#include "model/model_config.h"

#include <algorithm>

#include "model/method.h"

namespace evenkeel {
namespace {

constexpr const char* kActivationNames[] = {"swiglu", "gelu"};
constexpr const char* kArchitectureNames[] = {"pre_norm", "ngpt"};
constexpr const char* kTypeNames[] = {"fp32", "bf16"};
// The product of any two sizes fits 63 bits, and so does a position in flash attention's 32.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;

// What a method has derived from sizes follows them, unless it has been given another value.
void follow_sizes(const ModelConfig& before, ModelConfig& config) {
    const bool same = config.width == before.width && config.max_seq_len == before.max_seq_len &&
                      config.num_layers == before.num_layers &&
                      config.feed_forward_width == before.feed_forward_width &&
                      config.attention.head_dim == before.attention.head_dim;
    if (same) return;
    ModelConfig of_old = before, of_new = config;
    apply_method(config.method, of_old);
    apply_method(config.method, of_new);
    for (double QkNormConfig::*value : {&QkNormConfig::gain_init, &QkNormConfig::gain_unit}) {
        double& now = config.attention.qk_norm.*value;
        if (now == of_old.attention.qk_norm.*value) now = of_new.attention.qk_norm.*value;
    }
    double& scale = config.attention.softmax_scale;
    if (scale == of_old.attention.softmax_scale) scale = of_new.attention.softmax_scale;
}

}  // namespace

void ModelConfig::visit_fields(ConfigVisitor& v) {
    const ModelConfig before = *this;
    // Sizes come first: what a method sets may depend on them.
    v.field("vocab_size", vocab_size, "number of tokens; 256 for bytes");
    v.field("num_layers", num_layers, "decoder blocks");
    v.field("width", width, "channels of the residual stream");
    v.field("feed_forward_width", feed_forward_width, "channels inside the feed-forward layer");
    v.field("max_seq_len", max_seq_len, "longest sequence the model is run on");
    v.field("method", method,
            "how logits are kept bounded, by name (evenkeel methods): sets the keys that it stands "
            "for, before others that are given are read");
    if (method != before.method) {
        if (!method.empty()) apply_method(method, *this);
    } else if (!method.empty()) {
        follow_sizes(before, *this);
    }
    v.choice("activation", activation, kActivationNames, "feed-forward activation");
    v.choice("architecture", architecture, kArchitectureNames,
             "pre-norm decoder, or nGPT: hidden states and weights of unit length");
    v.field(
        "sigma_reparam", sigma_reparam,
        "multiply with gamma W / sigma(W), sigma the largest singular value, in all linear layers");
    v.field("tied_embeddings", tied_embeddings, "the output projection is the embedding");
    v.field("norm_eps", norm_eps, "added to the mean square inside the norms' root");
    v.field("init_std", init_std,
            "standard deviation of initial weights; wo and w_down get it over sqrt(2 num_layers)");
    v.field(
        "embedding_init_std", embedding_init_std,
        "standard deviation of an untied embedding's initial weights; a tied one gets init_std");
    v.choice("type", type, kTypeNames, "storage of activations and of the weights they meet");
    v.field("telemetry", telemetry, "measure max logit and entropy of every head");
    const ModelConfig before_attention = *this;
    v.section("attention", attention, "the attention layers");
    if (!method.empty()) follow_sizes(before_attention, *this);
}

void ModelConfig::validate(std::int64_t tensor_parallel, Device device) const {
    const auto positive = [](const char* name, std::int64_t value) {
        EVENKEEL_CHECK_CODE(value > 0, ErrorCode::kConfig, "ModelConfig", "model.", name, ": got ",
                            value, ", want 1 or more");
        EVENKEEL_CHECK_CODE(value <= kMaxSize, ErrorCode::kConfig, "ModelConfig", "model.", name,
                            ": got ", value, ", want at most 2^30");
    };
    const auto divisible = [&](const char* name, std::int64_t value) {
        positive(name, value);
        EVENKEEL_CHECK_CODE(value % tensor_parallel == 0, ErrorCode::kConfig, "ModelConfig",
                            "model.", name, ": got ", value,
                            ", want a multiple of parallel.tensor_parallel (", tensor_parallel,
                            ")");
    };
    divisible("vocab_size", vocab_size);
    positive("num_layers", num_layers);
    positive("width", width);
    divisible("feed_forward_width", feed_forward_width);
    positive("max_seq_len", max_seq_len);
    EVENKEEL_CHECK_CODE(norm_eps > 0.0, ErrorCode::kConfig, "ModelConfig", "model.norm_eps: got ",
                        norm_eps, ", want more than 0");
    EVENKEEL_CHECK_CODE(init_std >= 0.0, ErrorCode::kConfig, "ModelConfig", "model.init_std: got ",
                        init_std, ", want 0 or more");
    EVENKEEL_CHECK_CODE(embedding_init_std >= 0.0, ErrorCode::kConfig, "ModelConfig",
                        "model.embedding_init_std: got ", embedding_init_std, ", want 0 or more");
    attention.validate(tensor_parallel, device);
    const bool clips = attention.qk_clip_threshold > 0.0;
    EVENKEEL_CHECK_CODE(
        !clips || (!sigma_reparam && architecture == Architecture::kPreNorm), ErrorCode::kConfig,
        "ModelConfig", "model.attention.qk_clip_threshold: got ", attention.qk_clip_threshold,
        ", want 0: ",
        sigma_reparam ? "with model.sigma_reparam the scale of a weight is gamma's, "
                        "whatever the weight's own"
                      : "model.architecture ngpt brings every row of a weight back "
                        "to unit length after each step");
    const bool ngpt = architecture == Architecture::kNgpt;
    EVENKEEL_CHECK_CODE(!ngpt || !sigma_reparam, ErrorCode::kConfig, "ModelConfig",
                        "model.sigma_reparam: got true, want false: model.architecture ngpt gives "
                        "every row of a weight unit length");
    EVENKEEL_CHECK_CODE(!ngpt || !tied_embeddings, ErrorCode::kConfig, "ModelConfig",
                        "model.tied_embeddings: got true, want false: model.architecture ngpt "
                        "scales the output projection, not the embedding");
    EVENKEEL_CHECK_CODE(!ngpt || (init_std > 0.0 && embedding_init_std > 0.0), ErrorCode::kConfig,
                        "ModelConfig",
                        "model.init_std, model.embedding_init_std: got 0, want more with "
                        "model.architecture ngpt, which gives every row unit length");
    EVENKEEL_CHECK_CODE(
        !sigma_reparam || init_std > 0.0, ErrorCode::kConfig, "ModelConfig",
        "model.init_std: got 0, want more with model.sigma_reparam, which divides by "
        "the weights' largest singular value");
    EVENKEEL_CHECK_CODE(device == Device::kCpu || type == ComputeType::kBf16, ErrorCode::kConfig,
                        "ModelConfig",
                        "model.type: got fp32, want bf16: GPUs train in bf16 with fp32 masters");
}

}  // namespace evenkeel
