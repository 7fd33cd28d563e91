#include "tests/attention/flash_attention_plain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/compare.h"

namespace evenkeel::testing {
namespace {

template <typename T>
PlainFlash run_plain_as(const FlashInputs& in, const AttentionOptions& options) {
    const ReferenceShape& s = in.shape;
    const T *q = in.q.data<T>(), *k = in.k.data<T>(), *v = in.v.data<T>(),
            *dout = in.dout.data<T>();
    const float scale =
        static_cast<float>(options.softmax_scale > 0.0 ? options.softmax_scale
                                                       : 1.0 / std::sqrt(static_cast<double>(s.D)));
    std::vector<float> out(in.q.numel()), dq(in.q.numel()), dk(in.k.numel()), dv(in.v.numel());
    std::vector<float> p(s.S), dp(s.S), slope(s.S, 1.0f);
    const auto cap = static_cast<float>(options.softcap);
    const float* sink = options.sink.defined() ? options.sink.data<float>() : nullptr;
    std::vector<float> dsink(s.H);
    PlainFlash r;
    r.lse = Tensor::full({s.B, s.H, s.T}, -INFINITY, DType::kFloat32);
    auto round = [](float x) { return static_cast<float>(static_cast<T>(x)); };
    for (std::int64_t b = 0; b < s.B; ++b) {
        for (std::int64_t h = 0; h < s.H; ++h) {
            for (std::int64_t t = 0; t < s.T; ++t) {
                const std::int64_t at = ((b * s.T + t) * s.H + h) * s.D;
                auto key = [&](std::int64_t j) {
                    return ((b * s.S + j) * s.K + h / (s.H / s.K)) * s.D;
                };
                float highest = -INFINITY, sum = 0.0f, mean = 0.0f;
                for (std::int64_t j = 0; j < s.S; ++j) {
                    p[j] = -INFINITY;
                    if (!reference_sees(options.mask, s.T, s.S, t, j)) continue;
                    float dot = 0.0f;
                    for (std::int64_t d = 0; d < s.D; ++d) {
                        dot += static_cast<float>(q[at + d]) * static_cast<float>(k[key(j) + d]);
                    }
                    p[j] = dot * scale;
                    if (cap > 0.0f) {
                        const float tanh = std::tanh(p[j] / cap);
                        p[j] = cap * tanh;
                        slope[j] = 1.0f - tanh * tanh;
                    }
                    highest = std::max(highest, p[j]);
                }
                float& lse = r.lse.data<float>()[(b * s.H + h) * s.T + t];
                if (sink) lse = sink[h];
                if (highest == -INFINITY) continue;
                if (sink) highest = std::max(highest, sink[h]);
                if (sink) sum += std::exp(sink[h] - highest);
                for (float x : p) sum += std::exp(x - highest);
                lse = highest + std::log(sum);
                for (std::int64_t j = 0; j < s.S; ++j) {
                    p[j] = std::exp(p[j] - highest) / sum;
                    dp[j] = 0.0f;
                    for (std::int64_t d = 0; d < s.D; ++d) {
                        out[at + d] += round(p[j]) * static_cast<float>(v[key(j) + d]);
                        dp[j] +=
                            static_cast<float>(dout[at + d]) * static_cast<float>(v[key(j) + d]);
                    }
                    mean += p[j] * dp[j];
                }
                if (sink) {
                    // From what forward has left: out in the storage type, and lse.
                    mean = 0.0f;
                    for (std::int64_t d = 0; d < s.D; ++d)
                        mean += static_cast<float>(dout[at + d]) * round(out[at + d]);
                    dsink[h] -= std::exp(sink[h] - lse) * mean;
                }
                for (std::int64_t j = 0; j < s.S; ++j) {
                    const float ds = round(p[j] * (dp[j] - mean) * slope[j]);
                    for (std::int64_t d = 0; d < s.D; ++d) {
                        dq[at + d] += ds * static_cast<float>(k[key(j) + d]) * scale;
                        dk[key(j) + d] += ds * static_cast<float>(q[at + d]) * scale;
                        dv[key(j) + d] += round(p[j]) * static_cast<float>(dout[at + d]);
                    }
                }
            }
        }
    }
    auto tensor = [](const std::vector<float>& values, const Tensor& like) {
        Tensor x = Tensor::uninitialized(like.shape(), like.dtype());
        for (std::size_t i = 0; i < values.size(); ++i) x.data<T>()[i] = static_cast<T>(values[i]);
        return x;
    };
    r.out = tensor(out, in.q);
    r.gradients = {tensor(dq, in.q), tensor(dk, in.k), tensor(dv, in.v)};
    if (sink) {
        r.gradients.dsink = Tensor::uninitialized({s.H}, DType::kFloat32);
        std::copy(dsink.begin(), dsink.end(), r.gradients.dsink.data<float>());
    }
    return r;
}

bool is_noise(const Tensor& got, const std::vector<double>& want) {
    for (double x : want) {
        if (std::abs(x) > 1e-12) return false;
    }
    return near(got, want, 0.0, 1e-6);
}

// In magnitude, and at least 1.
double largest_logit(const ReferenceResult& truth) {
    double largest = 1.0;
    for (double m : truth.max_logit) {
        if (std::isfinite(m)) largest = std::max(largest, std::abs(m));
    }
    return largest;
}

}  // namespace

FlashInputs make_flash_inputs(const ReferenceShape& s,
                              DType dtype,
                              DataKind kind,
                              std::uint64_t seed) {
    return {make_data(kind, {s.B, s.T, s.H, s.D}, dtype, seed),
            make_data(kind, {s.B, s.S, s.K, s.D}, dtype, seed + 1),
            make_data(kind, {s.B, s.S, s.K, s.D}, dtype, seed + 2),
            gaussian({s.B, s.T, s.H, s.D}, dtype, seed + 3), s};
}

PlainFlash run_plain_flash(const FlashInputs& in, const AttentionOptions& options) {
    switch (in.q.dtype()) {
        case DType::kFloat32:
            return run_plain_as<float>(in, options);
        case DType::kBFloat16:
            return run_plain_as<bfloat16>(in, options);
        default:
            return run_plain_as<float16>(in, options);
    }
}

FlashTruth run_flash_reference(const FlashInputs& in, const AttentionOptions& options) {
    const auto q = to_doubles(in.q), k = to_doubles(in.k), v = to_doubles(in.v);
    ReferenceOptions o;
    o.attention = options;
    return {reference_attention_forward(in.shape, q, k, v, o),
            reference_attention_backward(in.shape, q, k, v, to_doubles(in.dout), o)};
}

void expect_forward_near_truth(const Tensor& out,
                               const Tensor& lse,
                               const AttentionStats* stats,
                               const PlainFlash& plain,
                               const ReferenceResult& truth) {
    EXPECT_TRUE(within_error_of_plain(out, plain.out, truth.out, 2.0)) << "out";
    EXPECT_TRUE(within_error_of_plain(lse, plain.lse, truth.lse, 2.0)) << "lse";
    if (!stats) return;
    // fp32 logits of magnitude m carry an error of some m * 2^-24.
    EXPECT_TRUE(near(stats->max_logit, truth.max_logit, 2e-6, 2e-6)) << "max_logit";
    const double largest = largest_logit(truth);
    if (largest < 1e4) {
        EXPECT_TRUE(near(stats->entropy, truth.entropy, 1e-5, 1e-5 + 1e-7 * largest)) << "entropy";
    }
}

void expect_telemetry_near_truth(const AttentionStats& stats, const ReferenceResult& truth) {
    EXPECT_TRUE(near(stats.max_logit_uncapped, truth.max_logit_uncapped, 2e-6, 2e-6))
        << "max_logit_uncapped";
    const double largest = largest_logit(truth);
    if (largest >= 1e4) return;
    EXPECT_TRUE(near(stats.entropy_share, truth.entropy_share, 1e-5, 1e-5 + 1e-7 * largest))
        << "entropy_share";
    EXPECT_TRUE(near(stats.saturation, truth.saturation, 0.0, 1e-6)) << "saturation";
}

void expect_gradients_near_truth(const FlashGradients& got,
                                 const FlashGradients& plain,
                                 const FlashTruth& truth) {
    const auto expect = [](const char* name, const Tensor& x, const Tensor& simple,
                           const std::vector<double>& want) {
        const ::testing::AssertionResult result = within_error_of_plain(x, simple, want, 3.0);
        EXPECT_TRUE(result || is_noise(x, want)) << name << ": " << result.message();
    };
    expect("dq", got.dq, plain.dq, truth.backward.dq);
    expect("dk", got.dk, plain.dk, truth.backward.dk);
    expect("dv", got.dv, plain.dv, truth.backward.dv);
    if (!got.dsink.defined()) return;
    // A few sums over rows, whose errors are a matter of luck: so beside the plain implementation's error
    // that of a term. It is made of out in the storage type, and of an fp32 lse of size 16 or more.
    const std::vector<double>& want = truth.backward.dsink;
    const std::vector<double> simple = to_doubles(plain.dsink);
    double error = 0.0, magnitude = 0.0;
    for (std::size_t h = 0; h < want.size(); ++h) {
        error = std::max(error, std::abs(simple[h] - want[h]));
        magnitude = std::max(magnitude, std::abs(want[h]));
    }
    const double unit = got.dq.dtype() == DType::kBFloat16 ? 0x1p-9
                        : got.dq.dtype() == DType::kFloat16
                            ? 0x1p-12
                            : 0x1p-24 * std::max(16.0, largest_logit(truth.forward));
    const double allowed = 3.0 * error + 2.0 * unit * magnitude;
    EXPECT_TRUE(near(got.dsink, want, 0.0, allowed)) << "dsink";
}

}  // namespace evenkeel::testing
