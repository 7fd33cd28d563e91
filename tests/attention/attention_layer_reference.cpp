#include "tests/attention/attention_layer_reference.h"

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

ReferenceQkNormRope norm_rope_options(const LayerCase& c, const std::string& gain) {
    ReferenceQkNormRope options;
    options.kind = c.config.qk_norm.kind;
    options.eps = c.config.qk_norm.eps;
    if (options.kind != QkNormKind::kNone) options.gain = c.parameters.at(gain);
    options.frequencies = rope_frequencies(c.config.rope, c.config.head_dim);
    options.magnitude = rope_magnitude(c.config.rope);
    options.layout = c.config.rope.layout;
    if (c.layout.positions.defined()) {
        const std::int32_t* positions = c.layout.positions.data<std::int32_t>();
        options.positions.assign(positions, positions + c.tokens);
    }
    return options;
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
    options.attention.softmax_scale = c.config.softmax_scale;
    options.q = norm_rope_options(c, "q_gain");
    options.k = norm_rope_options(c, "k_gain");
    const auto& w = c.parameters;
    const Values q = multiply(x, w.at("wq"), c.width, H * D);
    const Values k = multiply(x, w.at("wk"), c.width, K * D);
    const Values v = multiply(x, w.at("wv"), c.width, K * D);
    const Values out = reference_attention_forward(shape, q, k, v, options).out;

    LayerResult result;
    result.y = multiply(out, w.at("wo"), H * D, c.width);
    Values dout(out.size(), 0.0);
    result.gradients["wo"] = multiply_backward(dy, out, w.at("wo"), H * D, c.width, dout);
    const auto d = reference_attention_backward(shape, q, k, v, dout, options);
    result.dx.assign(x.size(), 0.0);
    result.gradients["wq"] = multiply_backward(d.dq, x, w.at("wq"), c.width, H * D, result.dx);
    result.gradients["wk"] = multiply_backward(d.dk, x, w.at("wk"), c.width, K * D, result.dx);
    result.gradients["wv"] = multiply_backward(d.dv, x, w.at("wv"), c.width, K * D, result.dx);
    if (options.q.kind != QkNormKind::kNone) {
        result.gradients["q_gain"] = d.dq_gain;
        result.gradients["k_gain"] = d.dk_gain;
    }
    return result;
}

}  // namespace evenkeel::testing
