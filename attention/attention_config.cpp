#include "attention/attention_config.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace evenkeel {
namespace {

constexpr const char* kOp = "attention";
constexpr std::int64_t kMaxHeads = 1 << 20;  // far more than fit, few enough to multiply
constexpr std::array<std::int64_t, 7> kHeadDims{32, 64, 80, 96, 128, 192, 256};
constexpr std::array<std::int64_t, 4> kCudaHeadDims{64, 96, 128, 256};

bool divides(std::int64_t a, std::int64_t b) { return a > 0 && b % a == 0; }

void check_heads(const AttentionConfig& config, std::int64_t tensor_parallel) {
    const std::int64_t H = config.num_heads, K = config.num_kv_heads, P = tensor_parallel;
    EVENKEEL_CHECK_CODE(H >= 1, ErrorCode::kConfig, kOp, "model.attention.num_heads: got ", H,
                        ", want 1 or more");
    EVENKEEL_CHECK_CODE(H <= kMaxHeads, ErrorCode::kConfig, kOp, "model.attention.num_heads: got ",
                        H, ", want at most ", kMaxHeads);
    EVENKEEL_CHECK_CODE(divides(K, H), ErrorCode::kConfig, kOp,
                        "model.attention.num_kv_heads: got ", K,
                        ", want a divisor of model.attention.num_heads ", H);
    EVENKEEL_CHECK_CODE(divides(P, H), ErrorCode::kConfig, kOp, "model.attention.num_heads: got ",
                        H, ", want a multiple of parallel.tensor_parallel ", P,
                        ": change one of the two");
    EVENKEEL_CHECK_CODE(divides(P, K) || divides(K, P), ErrorCode::kConfig, kOp,
                        "model.attention.num_kv_heads: got ", K,
                        ", want a divisor or a multiple of parallel.tensor_parallel ", P,
                        ": change one of the two");
}

void check_head_dim(const AttentionConfig& config, Device device) {
    const std::int64_t D = config.head_dim;
    EVENKEEL_CHECK_CODE(D % 2 == 0 || config.rope.rotary_fraction == 0.0, ErrorCode::kConfig, kOp,
                        "model.attention.head_dim: got ", D,
                        ", want an even number: rotary embedding turns channels in pairs");
    const bool supported = std::find(kHeadDims.begin(), kHeadDims.end(), D) != kHeadDims.end();
    EVENKEEL_CHECK_CODE(supported, ErrorCode::kConfig, kOp, "model.attention.head_dim: got ", D,
                        ", want one of 32, 64, 80, 96, 128, 192, 256");
    const bool on_device =
        device == Device::kCpu ||
        std::find(kCudaHeadDims.begin(), kCudaHeadDims.end(), D) != kCudaHeadDims.end();
    EVENKEEL_CHECK_CODE(on_device, ErrorCode::kConfig, kOp, "model.attention.head_dim: got ", D,
                        ", want one of 64, 96, 128, 256, which the kernels for GPUs have");
    rope_frequencies(config.rope, D);  // checks attention.rope
}

}  // namespace

void QkNormConfig::visit_fields(ConfigVisitor& v) {
    static constexpr const char* kKinds[] = {"none", "rms", "l2", "layer_norm"};
    static constexpr const char* kScopes[] = {"head", "full_width"};
    static constexpr const char* kGains[] = {"per_head_channel", "shared_channel",
                                             "per_head_scalar", "scalar", "none"};
    static constexpr const char* kForms[] = {"linear", "exponential"};
    v.choice("kind", kind, kKinds, "normalisation of queries and keys; none: plain attention");
    v.choice("scope", scope, kScopes, "a statistic for each head, or one for all heads of a token");
    v.choice("gain", gain, kGains,
             "gains per head and channel, per channel for all heads, one factor of the logits per "
             "head or for all heads, or none");
    v.choice("gain_form", gain_form, kForms,
             "gain_offset + parameter / gain_unit, or exp(parameter) up to gain_limit");
    v.field("eps", eps, "added to the mean (l2: the sum) of squares, inside the root");
    v.field("gain_init", gain_init, "first value of all gains");
    v.field("gain_offset", gain_offset, "1: gains are stored as gain - 1");
    v.field("gain_unit", gain_unit, "what a gain of 1 is stored as: the optimizer steps by it");
    v.field("gain_limit", gain_limit, "largest gain of the exponential form");
    v.field("gain_weight_decay", gain_weight_decay, "whether weight decay applies to the gains");
}

void AttentionConfig::visit_fields(ConfigVisitor& v) {
    v.field("num_heads", num_heads, "query heads; a multiple of num_kv_heads and tensor_parallel");
    v.field("num_kv_heads", num_kv_heads,
            "key/value heads; a divisor or a multiple of tensor_parallel");
    v.field("head_dim", head_dim, "width of a head: 32, 64, 80, 96, 128, 192 or 256");
    v.field("window", window, "tokens that a query sees, itself included; 0: all");
    v.field("causal", causal, "whether a query sees no later token; training wants true");
    static constexpr const char* kSinks[] = {"none", "off_by_one", "learned"};
    v.field("softmax_scale", softmax_scale,
            "factor of the logits; 0: 1 / sqrt(head_dim), with qk_norm.kind l2 1");
    v.field("softcap", softcap, "logits become softcap tanh(logit / softcap); 0: they stay");
    v.choice("sink", sink, kSinks, "a key without value that takes part in the softmax");
    v.field("sink_init", sink_init, "first logit of learned sinks");
    v.field("qk_clip_threshold", qk_clip_threshold,
            "largest logit after which a head's W_q and W_k are scaled down; 0: never");
    v.section("qk_norm", qk_norm, "normalisation of queries and keys");
    v.section("rope", rope, "rotary position embedding");
}

void AttentionConfig::validate(std::int64_t tensor_parallel, Device device) const {
    check_heads(*this, tensor_parallel);
    check_head_dim(*this, device);
    EVENKEEL_CHECK_CODE(window >= 0, ErrorCode::kConfig, kOp, "model.attention.window: got ",
                        window, ", want a number of tokens, or 0 for no limit");
    EVENKEEL_CHECK_CODE(std::isfinite(softmax_scale) && softmax_scale >= 0.0, ErrorCode::kConfig,
                        kOp, "model.attention.softmax_scale: got ", softmax_scale,
                        ", want a positive number, or 0 for 1 / sqrt(head_dim)");
    if (qk_norm.kind == QkNormConfig::Kind::kNone) return;
    EVENKEEL_CHECK_CODE(std::isfinite(qk_norm.eps) && qk_norm.eps > 0.0, ErrorCode::kConfig, kOp,
                        "model.attention.qk_norm.eps: got ", qk_norm.eps,
                        ", want a positive number");
    EVENKEEL_CHECK_CODE(std::isfinite(qk_norm.gain_init), ErrorCode::kConfig, kOp,
                        "model.attention.qk_norm.gain_init: got ", qk_norm.gain_init,
                        ", want a finite number");
}

double AttentionConfig::logit_scale() const {
    if (softmax_scale > 0.0) return softmax_scale;
    return qk_norm.kind == QkNormKind::kL2 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

}  // namespace evenkeel
