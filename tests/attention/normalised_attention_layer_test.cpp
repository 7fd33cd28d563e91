// What QK normalisation promises of the layer as a whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/tensor_parallel_attention.h"
#include "tests/attention/one_rank_layer.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::kWidth;
using testing::near;
using testing::OneRankLayer;
using testing::same_bits;
using testing::scale;
using testing::small_config;
using testing::to_doubles;
using testing::values_of;

using Kind = QkNormConfig::Kind;
using Gain = QkNormConfig::Gain;

constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;

// Every kind of norm, with the gains that go with it.
std::vector<AttentionConfig> normed_configs() {
    std::vector<AttentionConfig> configs;
    for (const Kind kind : {Kind::kRms, Kind::kL2, Kind::kLayerNorm}) {
        for (const Gain gain : {Gain::kPerHeadChannel, Gain::kSharedChannel, Gain::kPerHeadScalar,
                                Gain::kScalar, Gain::kNone}) {
            configs.push_back(small_config(kind, gain));
            if (kind == Kind::kL2 && gain == Gain::kNone) configs.back().softmax_scale = 6.0;
        }
    }
    configs.push_back(small_config());
    configs.back().qk_norm.gain_offset = 1.0;
    configs.push_back(small_config());
    configs.back().qk_norm.scope = QkNormConfig::Scope::kFullWidth;
    configs.push_back(small_config(Kind::kL2, Gain::kPerHeadScalar));
    configs.back().qk_norm.gain_form = QkNormConfig::GainForm::kExponential;
    return configs;
}

std::string name_of(const AttentionConfig& config) {
    return concat("kind ", static_cast<int>(config.qk_norm.kind), ", gain ",
                  static_cast<int>(config.qk_norm.gain), ", scope ",
                  static_cast<int>(config.qk_norm.scope), ", form ",
                  static_cast<int>(config.qk_norm.gain_form));
}

// Every path: the training forward pass, decoding from a prompt and token by token. With one key alone the
// logits do not matter, so there are more.
TEST(NormalisedAttentionLayerTest, ScaleOfQueriesAndKeysChangesNothingOnAnyPath) {
    for (const AttentionConfig& config : normed_configs()) {
        SCOPED_TRACE(name_of(config));
        OneRankLayer layer(config);
        const Tensor x = gaussian({2, 20, kWidth}, kFp32, 1);
        const Tensor forward = layer.forward(x), whole = layer.decode(x, 20),
                     single = layer.decode(x, 1);
        scale(layer.parameter("wq"), 7.0f);
        scale(layer.parameter("wk"), 7.0f);
        EXPECT_TRUE(near(layer.forward(x), forward, 2e-5, 2e-5));
        EXPECT_TRUE(near(layer.decode(x, 20), whole, 2e-5, 2e-5));
        EXPECT_TRUE(near(layer.decode(x, 1), single, 2e-5, 2e-5));
    }
    OneRankLayer plain(small_config(Kind::kNone));
    const Tensor x = gaussian({2, 20, kWidth}, kFp32, 1), before = plain.forward(x);
    scale(plain.parameter("wq"), 7.0f);
    EXPECT_FALSE(near(plain.forward(x), before, 1e-2, 1e-2));
}

// Two keys, the second the query's own: with unit gains the logit of equal rows is what the scale makes of the norm's
// length, and the other one follows from it by hand.
TEST(NormalisedAttentionLayerTest, LogitOfEqualRowsIsWhatEachMethodSays) {
    struct Known {
        const char* name;
        Kind kind;
        double softmax_scale, gain, logit;
    };
    const double root = std::sqrt(32.0);
    for (const Known& known : {Known{"rms: sqrt(D)", Kind::kRms, 0.0, 1.0, root},
                               Known{"layer norm: sqrt(D)", Kind::kLayerNorm, 0.0, 1.0, root},
                               Known{"unit length: g", Kind::kL2, 0.0, 12.3197, 12.3197},
                               Known{"unit length, 1/sqrt(D) kept: g / sqrt(D)", Kind::kL2,
                                     1.0 / root, 10.0, 10.0 / root},
                               Known{"nGPT: sqrt(D)", Kind::kL2, root, 1.0, root}}) {
        AttentionConfig config = small_config(known.kind, Gain::kPerHeadScalar);
        config.softmax_scale = known.softmax_scale;
        config.rope.rotary_fraction = 0.0;
        config.num_kv_heads = 4;
        OneRankLayer layer(config);
        layer.parameter("wk").value.copy_from(layer.parameter("wq").value);
        layer.parameter("q_gain").value.fill(static_cast<float>(known.gain));
        AttentionStats stats;
        layer.forward(gaussian({1, 9, kWidth}, kFp32, 1), &stats);
        for (int head = 0; head < 4; ++head) {
            EXPECT_NEAR(stats.max_logit.data<float>()[head], known.logit, 2e-5 * known.logit)
                << known.name << ", head " << head;
        }
    }
}

// One head of eight holds all of a token: per head its logit is sqrt(d), over the full width H sqrt(d).
TEST(NormalisedAttentionLayerTest, OneLoudHeadReachesEightTimesTheBoundOverTheFullWidth) {
    for (const bool full_width : {false, true}) {
        AttentionConfig config;
        config.num_heads = config.num_kv_heads = 8;
        config.head_dim = 64;
        config.rope.rotary_fraction = 0.0;
        config.qk_norm.gain = Gain::kNone;
        config.qk_norm.eps = 1e-12;  // nothing beside the quiet heads' squares
        if (full_width) config.qk_norm.scope = QkNormConfig::Scope::kFullWidth;
        OneRankLayer layer(config);
        float* wq = layer.parameter("wq").value.data<float>();
        for (int i = 64 * kWidth; i < 512 * kWidth; ++i) wq[i] *= 1e-3f;
        layer.parameter("wk").value.copy_from(layer.parameter("wq").value);
        AttentionStats stats;
        layer.forward(gaussian({1, 16, kWidth}, kFp32, 1), &stats);
        EXPECT_NEAR(stats.max_logit.data<float>()[0], full_width ? 64.0 : 8.0, 0.01)
            << "full width " << full_width;
        EXPECT_NEAR(stats.max_logit.data<float>()[1], full_width ? 0.0 : 8.0, 0.01)
            << "full width " << full_width;
    }
}

// 50 tanh(s / 50): the table of values by hand.
TEST(NormalisedAttentionLayerTest, SoftcapBendsTheLargestLogit) {
    for (const auto& [logit, capped] : {std::pair{5.0, 4.983}, {20.0, 18.997}, {100.0, 48.201}}) {
        AttentionConfig config = small_config(Kind::kL2, Gain::kPerHeadScalar);
        config.rope.rotary_fraction = 0.0;
        config.num_kv_heads = 4;
        config.softcap = 50.0;
        OneRankLayer layer(config);
        layer.parameter("wk").value.copy_from(layer.parameter("wq").value);
        layer.parameter("q_gain").value.fill(static_cast<float>(logit));
        AttentionStats stats;
        layer.forward(gaussian({1, 9, kWidth}, kFp32, 1), &stats);
        EXPECT_NEAR(stats.max_logit.data<float>()[2], capped, 1e-3);
        EXPECT_NEAR(stats.max_logit_uncapped.data<float>()[2], logit, 1e-3);
    }
}

// The first token sees itself and the sink: of its value stays 1 / (1 + e^(sink - logit)).
TEST(NormalisedAttentionLayerTest, SinkTakesItsShareOfTheFirstToken) {
    for (const double sink : {0.0, 1.5, -4.0}) {
        AttentionConfig config = small_config(Kind::kNone);
        config.sink = AttentionConfig::Sink::kLearned;
        AttentionConfig off_by_one = config;
        off_by_one.sink = AttentionConfig::Sink::kOffByOne;
        OneRankLayer layer(sink == 0.0 ? off_by_one : config);
        if (sink != 0.0) layer.parameter("sink").value.fill(static_cast<float>(sink));
        AttentionSaved saved;
        AttentionStats stats;
        layer->forward(gaussian({1, 1, kWidth}, kFp32, 1), {}, saved, &stats);
        for (int head = 0; head < 4; ++head) {
            const double share = 1.0 / (1.0 + std::exp(sink - stats.max_logit.data<float>()[head]));
            std::vector<double> want =
                to_doubles(saved.qkv.slice(2, 192 + head / 2 * 32, 224 + head / 2 * 32));
            for (double& value : want) value *= share;
            EXPECT_TRUE(near(saved.out.slice(2, head, head + 1), want, 1e-5, 1e-6)) << head;
        }
    }
}

TEST(NormalisedAttentionLayerTest, ScaleOfValuesScalesTheOutput) {
    OneRankLayer layer(small_config());
    const Tensor x = gaussian({2, 20, kWidth}, kFp32, 1);
    std::vector<double> want = to_doubles(layer.forward(x));
    for (double& value : want) value *= 7.0;
    scale(layer.parameter("wv"), 7.0f);
    EXPECT_TRUE(near(layer.forward(x), want, 1e-5, 1e-5));
}

TEST(NormalisedAttentionLayerTest, ValuesAreUntouched) {
    for (const DType type : {kFp32, kBf16}) {
        OneRankLayer normed(small_config(), type), plain(small_config(Kind::kNone), type);
        const Tensor x = gaussian({2, 9, kWidth}, type, 1);
        AttentionSaved a, b;
        normed->forward(x, {}, a, nullptr);
        plain->forward(x, {}, b, nullptr);
        EXPECT_TRUE(same_bits(a.qkv.slice(2, 192, 256), b.qkv.slice(2, 192, 256)));
        // The first token sees itself alone, so its heads give back their values, bit for bit.
        const Tensor values = a.qkv.slice(1, 0, 1).slice(2, 192, 256).view({2, 1, 2, 32});
        for (int head = 0; head < 4; ++head) {
            EXPECT_TRUE(same_bits(a.out.slice(1, 0, 1).slice(2, head, head + 1),
                                  values.slice(2, head / 2, head / 2 + 1)))
                << "head " << head;
        }
    }
}

TEST(NormalisedAttentionLayerTest, ZeroGainMakesExactlyThatHeadUniform) {
    OneRankLayer layer(small_config());
    const Tensor x = gaussian({1, 24, kWidth}, kFp32, 1);
    AttentionSaved before, after;
    AttentionStats stats_before, stats_after;
    layer->forward(x, {}, before, &stats_before);
    layer.parameter("q_gain").value.slice(0, 1, 2).zero();
    layer->forward(x, {}, after, &stats_after);
    double uniform = 0.0;
    for (int t = 1; t <= 24; ++t) uniform += std::log(t) / 24.0;
    for (int head = 0; head < 4; ++head) {
        const float entropy = stats_after.entropy.data<float>()[head];
        if (head == 1) {
            EXPECT_NEAR(entropy, uniform, 1e-5);
            EXPECT_EQ(stats_after.max_logit.data<float>()[head], 0.0f);
            continue;
        }
        EXPECT_LT(entropy, uniform - 0.05) << "head " << head;
        EXPECT_TRUE(
            same_bits(after.out.slice(2, head, head + 1), before.out.slice(2, head, head + 1)))
            << "head " << head;
        EXPECT_EQ(entropy, stats_before.entropy.data<float>()[head]) << "head " << head;
    }
    // Head 1 averages the values of KV head 0 over all tokens so far.
    const Tensor values = after.qkv.slice(2, 192, 224);
    std::vector<double> sum(32);
    for (int t = 0; t < 24; ++t) {
        std::vector<double> mean;
        for (int c = 0; c < 32; ++c) {
            sum[c] += to_doubles(values.slice(1, t, t + 1))[c];
            mean.push_back(sum[c] / (t + 1));
        }
        EXPECT_TRUE(near(after.out.slice(1, t, t + 1).slice(2, 1, 2), mean, 1e-5, 1e-6)) << t;
    }
}

TEST(NormalisedAttentionLayerTest, OneLoudHeadLeavesTheOthersAlone) {
    OneRankLayer layer(small_config());
    const Tensor x = gaussian({1, 24, kWidth}, kFp32, 1);
    AttentionSaved before, after;
    layer->forward(x, {}, before, nullptr);
    float* rows_of_head_2 = layer.parameter("wq").value.data<float>() + 2 * 32 * kWidth;
    for (int i = 0; i < 32 * kWidth; ++i) rows_of_head_2[i] *= 1000.0f;
    layer->forward(x, {}, after, nullptr);
    for (const int head : {0, 1, 3}) {
        EXPECT_TRUE(same_bits(after.q.slice(2, head, head + 1), before.q.slice(2, head, head + 1)))
            << "head " << head;
        EXPECT_TRUE(
            same_bits(after.out.slice(2, head, head + 1), before.out.slice(2, head, head + 1)))
            << "head " << head;
    }
}

TEST(NormalisedAttentionLayerTest, LogitsStayWithinTheBoundOfTheGains) {
    OneRankLayer layer(small_config());
    scale(layer.parameter("wq"), 1000.0f);
    scale(layer.parameter("wk"), 1000.0f);
    AttentionStats stats;
    layer.forward(gaussian({2, 64, kWidth}, kFp32, 1), &stats);
    const auto gq = values_of(layer.parameter("q_gain").value);
    const auto gk = values_of(layer.parameter("k_gain").value);
    for (int head = 0; head < 4; ++head) {
        float largest_q = 0.0f, largest_k = 0.0f;
        for (int c = 0; c < 32; ++c) {
            largest_q = std::max(largest_q, std::abs(gq[head * 32 + c]));
            largest_k = std::max(largest_k, std::abs(gk[head / 2 * 32 + c]));
        }
        const float logit = stats.max_logit.data<float>()[head];
        EXPECT_LE(logit, std::sqrt(32.0) * largest_q * largest_k * (1.0 + 1e-5)) << "head " << head;
        EXPECT_GT(logit, 0.0f) << "head " << head;
    }
}

bool has_parameter(const OneRankLayer& layer, const std::string& name) {
    for (const Parameter* p : layer.parameters()) {
        if (testing::short_name(p->name) == name) return true;
    }
    return false;
}

TEST(NormalisedAttentionLayerTest, GainOfEveryHeadIsUsed) {
    for (const AttentionConfig& config : normed_configs()) {
        SCOPED_TRACE(name_of(config));
        OneRankLayer layer(config);
        const Tensor x = gaussian({1, 9, kWidth}, kFp32, 1),
                     dy = gaussian({1, 9, kWidth}, kFp32, 2);
        AttentionSaved saved;
        layer->forward(x, {}, saved, nullptr);
        layer->backward(dy, {}, saved);
        const auto loss = [&] {
            const auto y = to_doubles(layer.forward(x)), d = to_doubles(dy);
            double sum = 0.0;
            for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * d[i];
            return sum;
        };
        for (const char* name : {"q_gain", "k_gain"}) {
            if (!has_parameter(layer, name)) continue;
            const Parameter& p = layer.parameter(name);
            // One channel of each head, or every factor.
            const bool factor = p.value.numel() <= 4;
            for (std::int64_t at = factor ? 0 : 5; at < p.value.numel(); at += factor ? 1 : 32) {
                float& value = p.value.data<float>()[at];
                const float kept = value, step = 0.02f;
                value = kept + step;
                const double above = loss();
                value = kept - step;
                const double below = loss();
                value = kept;
                EXPECT_NE(above, below) << name << " " << at;
                EXPECT_NEAR((above - below) / (2.0 * step), p.grad.data<float>()[at],
                            2e-3 + 5e-3 * std::abs(p.grad.data<float>()[at]))
                    << name << " " << at;
            }
        }
    }
}

}  // namespace
}  // namespace evenkeel
