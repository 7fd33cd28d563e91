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
// A key at a bound of 1.5 has 20 times the weight of one at the opposite bound, and no key more.
constexpr double kLeastBound = 1.5;
constexpr double kLeastFactor = 1e-30,
                 kMostFactor = 1e30;                // of logits, as flash attention takes it
constexpr double kLeastCap = 1e-6, kMostCap = 1e6;  // as flash attention takes them
constexpr double kLeastHalf = 0x1p-25;              // and less is rounded to 0 in fp16
constexpr double kLargeEps = 1e-3;
constexpr const char* kNoValueNorm =
    "no setting: values are what attention returns, so normalising them throws away what they "
    "weigh, "
    "and bounds no logit (docs/qk_norm.md#v-normalised)";
constexpr const char* kNoClamp =
    "no setting: a clamped logit has no gradient, so that a head beyond the limit stays there; "
    "model.attention.softcap bends logits and keeps their gradients "
    "(docs/qk_norm.md#clamped-logits)";

constexpr const char* kNormFirst =
    "no setting: the norm always comes before the rotation; after it, gains of the two channels "
    "that turn "
    "together would make logits depend on where tokens stand (docs/qk_norm.md#norm-then-rotation)";

using Kind = QkNormConfig::Kind;
using Scope = QkNormConfig::Scope;
using Gain = QkNormConfig::Gain;

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

void check_logits(const AttentionConfig& config) {
    EVENKEEL_CHECK_CODE(config.window >= 0, ErrorCode::kConfig, kOp, "model.attention.window: got ",
                        config.window, ", want a number of tokens, or 0 for no limit");
    const double scale = config.softmax_scale, cap = config.softcap;
    EVENKEEL_CHECK_CODE(scale == 0.0 || (scale >= kLeastFactor && scale <= kMostFactor),
                        ErrorCode::kConfig, kOp, "model.attention.softmax_scale: got ", scale,
                        ", want a number from ", kLeastFactor, " to ", kMostFactor,
                        ", or 0 for 1 / sqrt(head_dim)");
    EVENKEEL_CHECK_CODE(cap == 0.0 || (cap >= kLeastCap && cap <= kMostCap), ErrorCode::kConfig,
                        kOp, "model.attention.softcap: got ", cap, ", want a number from ",
                        kLeastCap, " to ", kMostCap, ", or 0 for none");
    EVENKEEL_CHECK_CODE(std::abs(config.sink_init) <= kMostFactor, ErrorCode::kConfig, kOp,
                        "model.attention.sink_init: got ", config.sink_init,
                        ", want a number within ", kMostFactor);
    EVENKEEL_CHECK_CODE(config.sink_init == 0.0 || config.sink == AttentionConfig::Sink::kLearned,
                        ErrorCode::kConfig, kOp, "model.attention.sink_init: got ",
                        config.sink_init,
                        ", want 0: only model.attention.sink learned has a first logit to choose");
}

// Of what gains the parameters are, and what their first values may be.
void check_gain(const QkNormConfig& norm) {
    const auto number = [](const char* name, double value, bool right, const char* want) {
        EVENKEEL_CHECK_CODE(std::isfinite(value) && right, ErrorCode::kConfig, kOp,
                            "model.attention.qk_norm.", name, ": got ", value, ", want ", want);
    };
    const auto of_fp32 = [](double value) { return std::abs(value) <= kMostFactor; };
    number("gain_init", norm.gain_init, of_fp32(norm.gain_init), "a number that fp32 holds");
    number("gain_offset", norm.gain_offset, of_fp32(norm.gain_offset), "a number that fp32 holds");
    number("gain_unit", norm.gain_unit,
           norm.gain_unit >= kLeastFactor &&
               of_fp32((norm.gain_init - norm.gain_offset) * norm.gain_unit),
           "a positive number with which fp32 holds (gain_init - gain_offset) gain_unit");
    number("gain_limit", norm.gain_limit, norm.gain_limit > 0.0, "a positive number");
    if (norm.gain_form != QkNormConfig::GainForm::kExponential) return;
    EVENKEEL_CHECK_CODE(norm.gain == Gain::kPerHeadScalar || norm.gain == Gain::kScalar,
                        ErrorCode::kConfig, kOp,
                        "model.attention.qk_norm.gain_form: got exponential, want linear: the "
                        "exponential form is one temperature for all channels (qk_norm.gain "
                        "per_head_scalar or scalar)");
    number("gain_offset", norm.gain_offset, norm.gain_offset == 0.0,
           "0: the exponential form has no offset");
    number("gain_unit", norm.gain_unit, norm.gain_unit == 1.0,
           "1: the exponential form has no unit");
    number("gain_init", norm.gain_init, norm.gain_init > 0.0 && norm.gain_init <= norm.gain_limit,
           "a positive number of at most gain_limit: an exponential is never anything else");
}

// What is done to gains between updates, and to the norm as a whole over the first of them.
void check_holds(const QkNormConfig& norm) {
    const bool per_head_rms = norm.kind == Kind::kRms && norm.scope == Scope::kHead;
    const bool on_both = norm.gain == Gain::kPerHeadChannel || norm.gain == Gain::kSharedChannel;
    // (Counted in fp32.)
    EVENKEEL_CHECK_CODE(norm.anneal_steps >= 0 && norm.anneal_steps <= 1 << 24, ErrorCode::kConfig,
                        kOp, "model.attention.qk_norm.anneal_steps: got ", norm.anneal_steps,
                        ", want a number of steps up to 2^24, or 0 for none");
    EVENKEEL_CHECK_CODE(norm.anneal_steps == 0 || (per_head_rms && on_both), ErrorCode::kConfig,
                        kOp, "model.attention.qk_norm.anneal_steps: got ", norm.anneal_steps,
                        ", want 0: only qk_norm.kind rms with scope head and a gain for each "
                        "channel comes in by and by");
    EVENKEEL_CHECK_CODE(std::isfinite(norm.gain_bound) && norm.gain_bound >= 0.0,
                        ErrorCode::kConfig, kOp, "model.attention.qk_norm.gain_bound: got ",
                        norm.gain_bound, ", want a positive number, or 0 for none");
    EVENKEEL_CHECK_CODE(norm.gain_pull >= 0.0 && norm.gain_pull <= 1.0, ErrorCode::kConfig, kOp,
                        "model.attention.qk_norm.gain_pull: got ", norm.gain_pull,
                        ", want a number from 0 to 1");
    EVENKEEL_CHECK_CODE(
        (norm.gain_bound == 0.0 && norm.gain_pull == 0.0) ||
            (norm.kind != Kind::kNone && norm.gain == Gain::kPerHeadChannel &&
             norm.scope == Scope::kHead),
        ErrorCode::kConfig, kOp, "model.attention.qk_norm.",
        norm.gain_bound != 0.0 ? "gain_bound" : "gain_pull",
        ": want 0: only gains of each head and channel (qk_norm.gain per_head_channel, scope "
        "head) are held");
}

void check_norm(const QkNormConfig& norm) {
    const bool full_width = norm.scope == Scope::kFullWidth;
    EVENKEEL_CHECK_CODE(!full_width || norm.kind == Kind::kRms, ErrorCode::kConfig, kOp,
                        "model.attention.qk_norm.scope: got full_width, want head: one statistic "
                        "for all heads goes with qk_norm.kind rms alone");
    EVENKEEL_CHECK_CODE(
        !full_width || (norm.gain != Gain::kPerHeadScalar && norm.gain != Gain::kScalar),
        ErrorCode::kConfig, kOp,
        "model.attention.qk_norm.gain: got a factor of the logits, want per_head_channel, "
        "shared_channel or none with qk_norm.scope full_width");
    check_holds(norm);
    if (norm.kind == Kind::kNone) return;
    EVENKEEL_CHECK_CODE(std::isfinite(norm.eps) && norm.eps > 0.0, ErrorCode::kConfig, kOp,
                        "model.attention.qk_norm.eps: got ", norm.eps, ", want a positive number");
    if (norm.gain != Gain::kNone) check_gain(norm);
}

// QK-Clip turns down what the logits are made of, head by head: W_q and W_k, or, where a norm undoes that,
// gains that belong to one head each.
void check_clip(const AttentionConfig& config) {
    const double threshold = config.qk_clip_threshold;
    EVENKEEL_CHECK_CODE(std::isfinite(threshold) && threshold >= 0.0, ErrorCode::kConfig, kOp,
                        "model.attention.qk_clip_threshold: got ", threshold,
                        ", want a positive number, or 0 for none");
    const QkNormConfig& norm = config.qk_norm;
    const bool own_gains = norm.scope == Scope::kHead && norm.gain == Gain::kPerHeadChannel;
    EVENKEEL_CHECK_CODE(
        threshold == 0.0 || norm.kind == Kind::kNone || own_gains, ErrorCode::kConfig, kOp,
        "model.attention.qk_clip_threshold: got ", threshold,
        ", want 0: scaling W_q and W_k does nothing to normalised queries and keys, so that it is "
        "the gains that are clipped, and these must be each head's own (qk_norm.scope head, "
        "qk_norm.gain per_head_channel)");
}

// What a norm with its first gains lets the logits of a head be at most: |q| |k| is D for rows of rms 1.
double first_bound(const AttentionConfig& config) {
    const QkNormConfig& qk_norm = config.qk_norm;
    const double rows = qk_norm.kind == Kind::kL2 ? 1.0 : static_cast<double>(config.head_dim);
    const bool on_both =
        qk_norm.gain == Gain::kPerHeadChannel || qk_norm.gain == Gain::kSharedChannel;
    const double gain = qk_norm.gain == Gain::kNone ? 1.0 : std::abs(qk_norm.gain_init);
    return config.logit_scale() * rows * (on_both ? gain * gain : gain);
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
    v.field("anneal_steps", anneal_steps,
            "steps over which the norm comes in, for models trained without it; 0: there at once");
    v.field("gain_bound", gain_bound,
            "gains are held so that no logit can be larger than this; 0: they are not");
    v.field("gain_pull", gain_pull,
            "share of the way back to their first values that gains go at each update");
    v.refused("normalize_v", kNoValueNorm);
    for (const char* name : {"order", "rope_then_norm", "norm_then_rope"}) {
        v.refused(name, kNormFirst);
    }
}

void AttentionConfig::visit_fields(ConfigVisitor& v) {
    v.field("num_heads", num_heads, "query heads; a multiple of num_kv_heads and tensor_parallel");
    v.field("num_kv_heads", num_kv_heads,
            "key/value heads; a divisor or a multiple of tensor_parallel");
    v.field("head_dim", head_dim, "width of a head: 32, 64, 80, 96, 128, 192 or 256");
    v.field("qkv_bias", qkv_bias, "biases of the projections to queries, keys and values");
    v.field("output_bias", output_bias, "a bias of the output projection");
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
    for (const char* name : {"normalize_v", "v_norm"}) v.refused(name, kNoValueNorm);
    for (const char* name : {"logit_clamp", "clamp"}) v.refused(name, kNoClamp);
    for (const char* name : {"rope_then_norm", "norm_then_rope"}) v.refused(name, kNormFirst);
    v.section("qk_norm", qk_norm, "normalisation of queries and keys");
    v.section("rope", rope, "rotary position embedding");
}

void AttentionConfig::validate(std::int64_t tensor_parallel, Device device) const {
    check_heads(*this, tensor_parallel);
    check_head_dim(*this, device);
    check_logits(*this);
    check_norm(qk_norm);
    check_clip(*this);
}

std::vector<std::string> AttentionConfig::warnings() const {
    std::vector<std::string> texts;
    const auto warn = [&](const char* anchor, const auto&... parts) {
        texts.push_back(concat("model.attention.", parts..., " (docs/qk_norm.md#", anchor, ")"));
    };
    if (qk_norm.kind == Kind::kNone) return texts;
    const double usual_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
    const bool unit_length = qk_norm.kind == Kind::kL2;
    if (qk_norm.scope == Scope::kFullWidth) {
        warn("statistic-over-all-heads",
             "qk_norm.scope: full_width takes one statistic over all heads of a token, so that a "
             "loud head quietens the others and a head's logits may reach sqrt(num_heads "
             "num_kv_heads) times the bound of scope head");
    }
    const bool keeps_scale =
        unit_length && softmax_scale > 0.0 && softmax_scale <= 1.05 * usual_scale;
    if (keeps_scale) {
        warn("1sqrtd-kept-with-unit-length-vectors", "softmax_scale: got ", softmax_scale,
             ", at most about 1 / sqrt(head_dim), with q and k of unit length, whose dot products "
             "are at most 1 already: the softmax stays near uniform unless gains grow that much "
             "larger; want 0, which means 1 here");
    }
    const bool on_both =
        qk_norm.gain == Gain::kPerHeadChannel || qk_norm.gain == Gain::kSharedChannel;
    const double bound = first_bound(*this);
    if (on_both && qk_norm.gain_init == 0.0) {
        warn("gain-missing",
             "qk_norm.gain_init: got 0 for q and k, so that neither gain ever gets a gradient and "
             "attention stays uniform; want 1 or so");
    } else if (qk_norm.gain == Gain::kNone) {
        if (bound <= kLeastBound && !keeps_scale) {
            warn("gain-missing", "qk_norm.gain: none leaves logits between ", -bound, " and ",
                 bound,
                 ": no key can have much more weight than another; want a gain, or a larger "
                 "softmax_scale");
        } else if (!unit_length) {
            warn("gain-missing", "qk_norm.gain: none leaves logits between ", -bound, " and ",
                 bound,
                 " for good, with one temperature for all heads; want a gain unless the "
                 "model was made so");
        }
    } else if (bound <= kLeastBound && !keeps_scale) {
        warn("gain-missing", "qk_norm.gain_init: got ", qk_norm.gain_init,
             ", with which logits start between ", -bound, " and ", bound,
             ": attention stays near uniform until gains have grown; want a larger one, or a "
             "larger softmax_scale");
    }
    if (qk_norm.eps < kLeastHalf) {
        warn("eps-too-small", "qk_norm.eps: got ", qk_norm.eps,
             ", which is 0 in fp16: where a model's norms are computed in that type, a row of "
             "zeros becomes NaN; want 6e-8 or more, such as 1e-6");
    }
    if (qk_norm.eps > kLargeEps) {
        warn("eps-too-small", "qk_norm.eps: got ", qk_norm.eps,
             ", which is no longer small beside the ", unit_length ? "sum" : "mean",
             " of squares of ordinary rows: these are then shortened and not normalised; want "
             "about 1e-6");
    }
    return texts;
}

double AttentionConfig::logit_scale() const {
    if (softmax_scale > 0.0) return softmax_scale;
    return qk_norm.kind == QkNormKind::kL2 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

}  // namespace evenkeel
