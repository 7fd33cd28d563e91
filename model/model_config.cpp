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

}  // namespace

void ModelConfig::visit_fields(ConfigVisitor& v) {
    const std::string before = method;
    v.field("method", method,
            "how logits are kept bounded, by name (evenkeel methods): sets the keys that it stands "
            "for, "
            "before others that are given are read");
    if (method != before && !method.empty()) apply_method(method, *this);
    v.field("vocab_size", vocab_size, "number of tokens; 256 for bytes");
    v.field("num_layers", num_layers, "decoder blocks");
    v.field("width", width, "channels of the residual stream");
    v.field("feed_forward_width", feed_forward_width, "channels inside the feed-forward layer");
    v.field("max_seq_len", max_seq_len, "longest sequence the model is run on");
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
    v.section("attention", attention, "the attention layers");
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
    EVENKEEL_CHECK_CODE(architecture == Architecture::kPreNorm && !sigma_reparam,
                        ErrorCode::kConfig, "ModelConfig",
                        "model.architecture, model.sigma_reparam: not built yet");
    EVENKEEL_CHECK_CODE(device == Device::kCpu || type == ComputeType::kBf16, ErrorCode::kConfig,
                        "ModelConfig",
                        "model.type: got fp32, want bf16: GPUs train in bf16 with fp32 masters");
}

}  // namespace evenkeel
