#include "tests/attention/attention_layer_reference.h"

#include <cmath>

#include "attention/reference_attention.h"

namespace evenkeel::testing {
namespace {

using Values = std::vector<double>;

// x [rows, in] W^T for W [out, in].
Values multiply(const Values& x, const Values& w, std::int64_t in, std::int64_t out) {
    const auto rows = static_cast<std::int64_t>(x.size()) / in;
    Values y(static_cast<std::size_t>(rows * out), 0.0);
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t o = 0; o < out; ++o) {
            for (std::int64_t i = 0; i < in; ++i) y[r * out + o] += x[r * in + i] * w[o * in + i];
        }
    }
    return y;
}

// Adds dy W to dx; returns dy^T x.
Values multiply_backward(const Values& dy,
                         const Values& x,
                         const Values& w,
                         std::int64_t in,
                         std::int64_t out,
                         Values& dx) {
    const auto rows = static_cast<std::int64_t>(x.size()) / in;
    Values dw(w.size(), 0.0);
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t o = 0; o < out; ++o) {
            for (std::int64_t i = 0; i < in; ++i) {
                dx[r * in + i] += dy[r * out + o] * w[o * in + i];
                dw[o * in + i] += dy[r * out + o] * x[r * in + i];
            }
        }
    }
    return dw;
}

// Columns' sums of dy [rows, out].
Values bias_gradient(const Values& dy, std::int64_t out) {
    Values sums(static_cast<std::size_t>(out), 0.0);
    for (std::size_t i = 0; i < dy.size(); ++i) sums[i % sums.size()] += dy[i];
    return sums;
}

using Gain = QkNormConfig::Gain;

// What factor element i of a parameter makes of a channel, and how that changes with it.
struct Factor {
    double value, slope;
};

Factor factor_of(double parameter, const QkNormConfig& norm) {
    if (norm.gain_form == QkNormConfig::GainForm::kLinear) {
        return {norm.gain_offset + parameter / norm.gain_unit, 1.0 / norm.gain_unit};
    }
    const double value = std::exp(parameter);
    return value > norm.gain_limit ? Factor{norm.gain_limit, 0.0} : Factor{value, value};
}

// The parameter that stands behind channel c of head h; no number for gains that there are not.
std::size_t index_of(Gain gain, std::int64_t h, std::int64_t c, std::int64_t D) {
    switch (gain) {
        case Gain::kPerHeadChannel:
            return static_cast<std::size_t>(h * D + c);
        case Gain::kSharedChannel:
            return static_cast<std::size_t>(c);
        case Gain::kPerHeadScalar:
            return static_cast<std::size_t>(h);
        case Gain::kScalar:
        case Gain::kNone:
            break;
    }
    return 0;
}

// Gains [N, D] of a parameter, none of one that there is not.
Values gains_of(const LayerCase& c, const std::string& name, std::int64_t heads) {
    const auto parameter = c.parameters.find(name);
    if (parameter == c.parameters.end()) return {};
    Values gains;
    for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t channel = 0; channel < c.config.head_dim; ++channel) {
            const auto i = index_of(c.config.qk_norm.gain, h, channel, c.config.head_dim);
            gains.push_back(factor_of(parameter->second[i], c.config.qk_norm).value);
        }
    }
    return gains;
}

Values gain_gradient(const LayerCase& c, const std::string& name, const Values& dgains) {
    const Values& parameter = c.parameters.at(name);
    Values gradient(parameter.size(), 0.0);
    const auto D = static_cast<std::size_t>(c.config.head_dim);
    for (std::size_t at = 0; at < dgains.size(); ++at) {
        const auto i = index_of(c.config.qk_norm.gain, static_cast<std::int64_t>(at / D),
                                static_cast<std::int64_t>(at % D), c.config.head_dim);
        gradient[i] += dgains[at] * factor_of(parameter[i], c.config.qk_norm).slope;
    }
    return gradient;
}

ReferenceQkNormRope norm_rope_options(const LayerCase& c,
                                      const std::string& gain,
                                      std::int64_t heads) {
    ReferenceQkNormRope options;
    options.kind = c.config.qk_norm.kind;
    options.full_width = c.config.qk_norm.scope == QkNormConfig::Scope::kFullWidth;
    options.eps = c.config.qk_norm.eps;
    options.gain = gains_of(c, gain, heads);
    options.frequencies = rope_frequencies(c.config.rope, c.config.head_dim);
    options.magnitude = rope_magnitude(c.config.rope);
    options.layout = c.config.rope.layout;
    if (c.layout.positions.defined()) {
        const std::int32_t* positions = c.layout.positions.data<std::int32_t>();
        options.positions.assign(positions, positions + c.tokens);
    }
    return options;
}

// The scale of the logits, spelt out from the words of the configuration.
double scale_of(const AttentionConfig& config) {
    if (config.softmax_scale > 0.0) return config.softmax_scale;
    if (config.qk_norm.kind == QkNormKind::kL2) return 1.0;
    return 1.0 / std::sqrt(static_cast<double>(config.head_dim));
}

Tensor sink_of(const LayerCase& c) {
    if (c.config.sink == AttentionConfig::Sink::kNone) return {};
    const Tensor sink = Tensor::zeros({c.config.num_heads}, DType::kFloat32);
    if (c.config.sink == AttentionConfig::Sink::kOffByOne) return sink;
    const Values& values = c.parameters.at("sink");
    for (std::size_t h = 0; h < values.size(); ++h) {
        sink.data<float>()[h] = static_cast<float>(values[h]);
    }
    return sink;
}

}  // namespace

std::string short_name(const std::string& parameter_name) {
    return parameter_name.substr(parameter_name.rfind('.') + 1);
}

LayerResult attention_layer(const LayerCase& c, const Values& x, const Values& dy) {
    const std::int64_t H = c.config.num_heads, K = c.config.num_kv_heads, D = c.config.head_dim;
    const ReferenceShape shape{c.batch, c.tokens, c.tokens, H, K, D};
    ReferenceOptions options;
    options.attention.mask = {c.config.causal, c.config.window, c.layout.cu_seqlens};
    options.attention.softmax_scale = scale_of(c.config);
    options.attention.softcap = c.config.softcap;
    options.attention.sink = sink_of(c);
    options.q = norm_rope_options(c, "q_gain", H);
    options.k = norm_rope_options(c, "k_gain", K);
    const auto& w = c.parameters;
    // A weight's product and its bias, if it has one.
    const auto project = [&](const Values& from, const std::string& name, std::int64_t in,
                             std::int64_t out) {
        Values y = multiply(from, w.at(name), in, out);
        if (const auto bias = w.find(name + "_bias"); bias != w.end()) {
            for (std::size_t i = 0; i < y.size(); ++i)
                y[i] += bias->second[i % bias->second.size()];
        }
        return y;
    };
    const Values q = project(x, "wq", c.width, H * D);
    const Values k = project(x, "wk", c.width, K * D);
    const Values v = project(x, "wv", c.width, K * D);
    const ReferenceResult attended = reference_attention_forward(shape, q, k, v, options);
    const Values& out = attended.out;

    LayerResult result;
    result.max_logit = attended.max_logit;
    result.y = project(out, "wo", H * D, c.width);
    const auto project_backward = [&](const Values& d, const Values& from, const std::string& name,
                                      std::int64_t in, std::int64_t out, Values& dfrom) {
        result.gradients[name] = multiply_backward(d, from, w.at(name), in, out, dfrom);
        if (w.contains(name + "_bias")) {
            result.gradients[name + "_bias"] = bias_gradient(d, out);
        }
    };
    Values dout(out.size(), 0.0);
    project_backward(dy, out, "wo", H * D, c.width, dout);
    const auto d = reference_attention_backward(shape, q, k, v, dout, options);
    result.dx.assign(x.size(), 0.0);
    project_backward(d.dq, x, "wq", c.width, H * D, result.dx);
    project_backward(d.dk, x, "wk", c.width, K * D, result.dx);
    project_backward(d.dv, x, "wv", c.width, K * D, result.dx);
    if (w.contains("q_gain")) result.gradients["q_gain"] = gain_gradient(c, "q_gain", d.dq_gain);
    if (w.contains("k_gain")) result.gradients["k_gain"] = gain_gradient(c, "k_gain", d.dk_gain);
    if (w.contains("sink")) result.gradients["sink"] = d.dsink;
    return result;
}

}  // namespace evenkeel::testing
