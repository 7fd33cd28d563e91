#include "model/model_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/method.h"

namespace evenkeel {
namespace {

constexpr const char* kActivationNames[] = {"swiglu", "gelu", "geglu"};
constexpr const char* kArchitectureNames[] = {"pre_norm", "ngpt", "post_norm", "sandwich_norm",
                                              "parallel"};
constexpr const char* kTypeNames[] = {"fp32", "bf16"};
constexpr const char* kRecomputeNames[] = {"none", "elementwise", "attention", "full"};
// The product of any two sizes fits 63 bits, and so does a position in flash attention's 32.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;
// Each layer is looked at by itself before there is anything of it.
constexpr std::int64_t kMaxLayers = 1 << 16;
// Of all matrices, so that no count of elements or bytes passes 63 bits.
constexpr double kMaxElements = 0x1p58;

// Which of `count` layers a list like "0,3-5" names; "" names all.
std::vector<bool> layers_of(const std::string& text, std::int64_t count) {
    std::vector<bool> named(static_cast<std::size_t>(count), text.empty());
    const auto check = [&](bool right) {
        EVENKEEL_CHECK_CODE(right, ErrorCode::kConfig, "ModelConfig",
                            "model.qk_norm_layers: got \"", text, "\", want layers from 0 to ",
                            count - 1, " and ranges of them, such as 0,3-5");
    };
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(',', at), text.size());
        const char* last = text.data() + end;
        std::int64_t from = 0, to = 0;
        auto [rest, error] = std::from_chars(text.data() + at, last, from);
        check(error == std::errc());
        to = from;
        if (rest < last && *rest == '-') {
            const auto range = std::from_chars(rest + 1, last, to);
            check(range.ec == std::errc());
            rest = range.ptr;
        }
        check(rest == last && from >= 0 && from <= to && to < count);
        for (std::int64_t layer = from; layer <= to; ++layer) {
            named[static_cast<std::size_t>(layer)] = true;
        }
        at = end + 1;
        check(at != text.size());  // no comma at the end
    }
    return named;
}

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

// Counts of elements, bytes and operations are made of products of the sizes.
void check_sizes(const ModelConfig& config) {
    EVENKEEL_CHECK_CODE(config.num_layers <= kMaxLayers, ErrorCode::kConfig, "ModelConfig",
                        "model.num_layers: got ", config.num_layers, ", want at most ", kMaxLayers);
    const auto number = [](std::int64_t size) { return static_cast<double>(size); };
    const AttentionConfig& a = config.attention;
    const double heads = (number(a.num_heads) + number(a.num_kv_heads)) * number(a.head_dim);
    const double rows =
        2.0 * number(config.vocab_size) +
        number(config.num_layers) * (2.0 * heads + 3.0 * number(config.feed_forward_width) + 16.0);
    const double elements = number(config.width) * rows;
    EVENKEEL_CHECK_CODE(elements < kMaxElements, ErrorCode::kConfig, "ModelConfig",
                        "model.width, model.num_layers, model.feed_forward_width, "
                        "model.vocab_size, model.attention: got sizes that make ",
                        elements, " parameters, want fewer than 2^58");
}

// What models of others bring: norms of other kinds, scales, layers that differ.
void check_family(const ModelConfig& config) {
    const auto number = [](const char* name, double value, bool right, const char* want) {
        EVENKEEL_CHECK_CODE(std::isfinite(value) && right, ErrorCode::kConfig, "ModelConfig",
                            "model.", name, ": got ", value, ", want ", want);
    };
    number("embedding_scale", config.embedding_scale, config.embedding_scale > 0.0,
           "a positive number");
    number("logit_scale", config.logit_scale, config.logit_scale > 0.0, "a positive number");
    number("local_rope_theta", config.local_rope_theta,
           config.local_rope_theta == 0.0 ||
               (config.local_rope_theta > 1.0 && config.global_interval > 0),
           "a number above 1 where model.global_interval is set, or 0");
    number("norm.gain_offset", config.norm.gain_offset, true, "a finite number");
    EVENKEEL_CHECK_CODE(config.global_interval >= 0, ErrorCode::kConfig, "ModelConfig",
                        "model.global_interval: got ", config.global_interval,
                        ", want a number of layers, or 0");
    EVENKEEL_CHECK_CODE(!config.norm.bias || config.norm.kind == NormConfig::Kind::kLayerNorm,
                        ErrorCode::kConfig, "ModelConfig",
                        "model.norm.bias: got true, want false: only model.norm.kind layer_norm "
                        "has one");
    const NormConfig& norm = config.norm;
    const bool usual = norm.kind == NormConfig::Kind::kRms && norm.gain_offset == 0.0 &&
                       config.embedding_scale == 1.0 && config.logit_scale == 1.0 &&
                       !config.feed_forward_bias && !config.attention.qkv_bias &&
                       !config.attention.output_bias && config.qk_norm_layers.empty();
    EVENKEEL_CHECK_CODE(config.architecture != Architecture::kNgpt || usual, ErrorCode::kConfig,
                        "ModelConfig",
                        "model.architecture: ngpt has unit vectors in place of norms, biases and "
                        "scales: model.norm.*, model.embedding_scale, model.logit_scale, biases "
                        "and model.qk_norm_layers want their defaults");
}

// What a method is known by, with the value that attention without it has: the first that has that value where the
// method sets another; "" where there is none.
std::string lost_of_method(const ModelConfig& config) {
    if (config.method.empty()) return "";
    ModelConfig method;
    apply_method(config.method, method);
    const AttentionConfig &now = config.attention, &wanted = method.attention;
    const struct {
        const char* text;
        bool is_off, is_on;
    } settings[] = {
        {"model.attention.qk_norm.kind none", now.qk_norm.kind == QkNormKind::kNone,
         wanted.qk_norm.kind != QkNormKind::kNone},
        {"model.attention.softcap 0", now.softcap == 0.0, wanted.softcap != 0.0},
        {"model.attention.sink none", now.sink == AttentionConfig::Sink::kNone,
         wanted.sink != AttentionConfig::Sink::kNone},
        {"model.attention.qk_clip_threshold 0", now.qk_clip_threshold == 0.0,
         wanted.qk_clip_threshold != 0.0},
        {"model.sigma_reparam false", !config.sigma_reparam, method.sigma_reparam},
    };
    for (const auto& setting : settings) {
        if (setting.is_off && setting.is_on) return setting.text;
    }
    return "";
}

}  // namespace

const char* name_of(Recompute recompute) { return kRecomputeNames[static_cast<int>(recompute)]; }

void NormConfig::visit_fields(ConfigVisitor& v) {
    static constexpr const char* kKinds[] = {"rms", "layer_norm"};
    v.choice("kind", kind, kKinds, "rms, or layer_norm, which also takes the mean off");
    v.field("bias", bias, "a bias after the gain; layer_norm only");
    v.field("gain_offset", gain_offset, "1: gains are stored as gain - 1");
}

std::vector<std::string> ModelConfig::warnings() const {
    std::vector<std::string> texts = attention.warnings();
    if (sigma_reparam && attention.qk_norm.kind != QkNormKind::kNone) {
        texts.emplace_back(
            "model.sigma_reparam: got true with model.attention.qk_norm, which takes the scale of "
            "W_q and W_k "
            "away again, so that their gammas get no gradient; want one of the two "
            "(docs/qk_norm.md#sigma-reparametrisation-under-a-norm)");
    }
    if (architecture == Architecture::kNgpt && attention.qk_norm.kind != QkNormKind::kL2) {
        texts.emplace_back(
            "model.architecture: ngpt keeps hidden states and weights at unit length, and queries "
            "and keys with model.attention.qk_norm.kind l2; with another kind its logit scale is "
            "that of other rows; want l2 (docs/qk_norm.md#a-method-without-what-it-is)");
    } else {
        const std::string lost = lost_of_method(*this);
        if (!lost.empty()) {
            texts.push_back(concat("model.method: ", method, " with ", lost,
                                   ", as attention without it has: what the method is has been "
                                   "taken away; want another method, or its own value "
                                   "(docs/qk_norm.md#a-method-without-what-it-is)"));
        }
    }
    const std::int64_t keys =
        attention.window > 0 ? std::min(attention.window, max_seq_len) : max_seq_len;
    const double least = std::log(static_cast<double>(std::max<std::int64_t>(keys - 1, 2))) / 2;
    for (const auto& [key, bound] : {std::pair{"qk_norm.gain_bound", attention.qk_norm.gain_bound},
                                     {"softcap", attention.softcap}}) {
        if (bound == 0.0 || bound >= least) continue;
        texts.push_back(concat("model.attention.", key, ": got ", bound,
                               ", with which logits are so near together that none of ", keys,
                               " keys could have half of a query's attention; want ",
                               std::ceil(100.0 * least) / 100.0,
                               " or more (docs/qk_norm.md#a-bound-that-is-too-low)"));
    }
    return texts;
}

AttentionConfig ModelConfig::layer_attention(std::int64_t layer) const {
    AttentionConfig config = attention;
    const bool is_normed =
        qk_norm_layers.empty() ||  // the usual case, in a time that does not grow with the layers
        layers_of(qk_norm_layers, num_layers)[static_cast<std::size_t>(layer)];
    if (!is_normed) {
        config.qk_norm = {};
        config.qk_norm.kind = QkNormKind::kNone;
    }
    if (global_interval == 0) return config;
    if ((layer + 1) % global_interval == 0) {
        config.window = 0;
    } else if (local_rope_theta > 0.0) {
        const RopeConfig global = config.rope;
        config.rope = {};
        config.rope.theta = local_rope_theta;
        config.rope.rotary_fraction = global.rotary_fraction;
        config.rope.layout = global.layout;
    }
    return config;
}

std::vector<AttentionConfig> ModelConfig::layer_attentions() const {
    std::vector<AttentionConfig> all;
    for (std::int64_t layer = 0; layer < num_layers; ++layer) all.push_back(layer_attention(layer));
    return all;
}

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
             "where a block has its norms and how it adds up (model/model_config.h); ngpt: hidden "
             "states and weights of unit length");
    v.field(
        "sigma_reparam", sigma_reparam,
        "multiply with gamma W / sigma(W), sigma the largest singular value, in all linear layers");
    v.field("tied_embeddings", tied_embeddings, "the output projection is the embedding");
    v.field("feed_forward_bias", feed_forward_bias, "biases of the feed-forward layers");
    v.field("embedding_scale", embedding_scale, "factor of the embeddings");
    v.field("logit_scale", logit_scale, "factor of the model's logits");
    v.field("global_interval", global_interval,
            "every n-th layer has no window and rope.theta; 0: all layers are alike");
    v.field("local_rope_theta", local_rope_theta,
            "rope.theta of the layers with a window, where global_interval sets them apart; 0: as "
            "the others");
    v.field("qk_norm_layers", qk_norm_layers,
            "layers that have attention.qk_norm, counting from 0, such as 0,3-5; empty: all");
    v.section("norm", norm, "the norms of the residual stream");
    v.field("norm_eps", norm_eps, "added to the mean square inside the norms' root");
    v.field("init_std", init_std,
            "standard deviation of initial weights; wo and w_down get it over sqrt(2 num_layers)");
    v.field(
        "embedding_init_std", embedding_init_std,
        "standard deviation of an untied embedding's initial weights; a tied one gets init_std");
    v.choice("type", type, kTypeNames, "storage of activations and of the weights they meet");
    v.field("telemetry", telemetry, "measure max logit and entropy of every head");
    v.choice(
        "recompute", recompute, kRecomputeNames,
        "what backward makes again so that less is kept: none, elementwise (norms, rotations and "
        "activations, no products), the attention layers, or full, all of each block");
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
    positive("vocab_size", vocab_size);
    positive("num_layers", num_layers);
    constexpr std::int64_t kMostLayers = 1 << 16;
    EVENKEEL_CHECK_CODE(num_layers <= kMostLayers, ErrorCode::kConfig, "ModelConfig",
                        "model.num_layers: got ", num_layers, ", want at most ", kMostLayers);
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
    check_sizes(*this);
    layers_of(qk_norm_layers, num_layers);
    check_family(*this);
    const bool clips = attention.qk_clip_threshold > 0.0;
    EVENKEEL_CHECK_CODE(
        !clips || (!sigma_reparam && architecture != Architecture::kNgpt), ErrorCode::kConfig,
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
}

}  // namespace evenkeel
