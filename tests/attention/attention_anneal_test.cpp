// The attention layer with a norm that comes in by and by.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/gain.h"
#include "tests/attention/one_rank_layer.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::kWidth;
using testing::near;
using testing::OneRankLayer;
using testing::same_bits;
using testing::small_config;
using testing::to_doubles;

using Kind = QkNormConfig::Kind;
using Gain = QkNormConfig::Gain;

constexpr DType kFp32 = DType::kFloat32;

Tensor scalar(double value) { return Tensor::full({1}, static_cast<float>(value), kFp32); }

// Gains about the size of what is normalised, as a model that had no norm gets them.
void make_positive(OneRankLayer& layer) {
    for (const char* name : {"q_gain", "k_gain"}) {
        Parameter& gain = layer.parameter(name);
        for (std::int64_t i = 0; i < gain.master.numel(); ++i) {
            float& value = gain.master.data<float>()[i];
            value = 0.25f + std::abs(value);
        }
    }
}

struct Passes {
    Tensor y, dx;
};

Passes run(OneRankLayer& layer, const Tensor& x, const Tensor& dy) {
    layer.zero_gradients();
    AttentionSaved saved;
    const Tensor y = layer->forward(x, {}, saved, nullptr);
    return {y, layer->backward(dy, {}, saved)};
}

TEST(AttentionAnnealTest, LambdaOfZeroIsTheLayerWithoutNormToTheBit) {
    for (const DType type : {kFp32, DType::kBFloat16}) {
        OneRankLayer plain(small_config(Kind::kNone), type), normed(small_config(), type);
        for (const char* name : {"wq", "wk", "wv", "wo"}) {
            ASSERT_TRUE(same_bits(plain.parameter(name).value, normed.parameter(name).value));
        }
        normed->set_lambda(scalar(0.0));
        const Tensor x = gaussian({2, 20, kWidth}, type, 1),
                     dy = gaussian({2, 20, kWidth}, type, 2);
        const Passes want = run(plain, x, dy), got = run(normed, x, dy);
        EXPECT_TRUE(same_bits(got.y, want.y));
        EXPECT_TRUE(same_bits(got.dx, want.dx));
        EXPECT_TRUE(same_bits(normed.decode(x, 5), plain.decode(x, 5)));
        for (const char* name : {"wq", "wk", "wv", "wo"}) {
            EXPECT_TRUE(same_bits(normed.parameter(name).grad, plain.parameter(name).grad)) << name;
        }
        for (const char* name : {"q_gain", "k_gain"}) {
            EXPECT_EQ(testing::largest(to_doubles(normed.parameter(name).grad)), 0.0) << name;
        }
    }
}

// Whatever the sign of the gains; with a stored offset too.
TEST(AttentionAnnealTest, LambdaOfOneIsTheWholeNorm) {
    for (const double offset : {0.0, 1.0}) {
        for (const Gain gain : {Gain::kPerHeadChannel, Gain::kSharedChannel}) {
            AttentionConfig config = small_config(Kind::kRms, gain);
            config.qk_norm.gain_offset = offset;
            OneRankLayer whole(config), annealed(config);
            annealed->set_lambda(scalar(1.0));
            const Tensor x = gaussian({2, 20, kWidth}, kFp32, 1);
            const Tensor dy = gaussian({2, 20, kWidth}, kFp32, 2);
            const Passes want = run(whole, x, dy), got = run(annealed, x, dy);
            EXPECT_TRUE(same_bits(got.y, want.y));
            EXPECT_TRUE(same_bits(got.dx, want.dx));
            EXPECT_TRUE(same_bits(annealed.decode(x, 5), whole.decode(x, 5)));
            for (const Parameter* p : whole.parameters()) {
                const std::string name = testing::short_name(p->name);
                EXPECT_TRUE(same_bits(annealed.parameter(name).grad, p->grad)) << name;
            }
        }
    }
}

TEST(AttentionAnnealTest, GradientsOfEveryWeightMatchFiniteDifferences) {
    for (const Gain gain : {Gain::kPerHeadChannel, Gain::kSharedChannel}) {
        OneRankLayer layer(small_config(Kind::kRms, gain));
        make_positive(layer);
        layer->set_lambda(scalar(0.3));
        Tensor x = gaussian({1, 9, kWidth}, kFp32, 1);
        const Tensor dy = gaussian({1, 9, kWidth}, kFp32, 2);
        const Tensor dx = run(layer, x, dy).dx;
        const auto loss = [&] {
            const auto y = to_doubles(layer.forward(x)), d = to_doubles(dy);
            double sum = 0.0;
            for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * d[i];
            return sum;
        };
        const auto check = [&](const std::string& name, const Tensor& values, const Tensor& grad) {
            for (std::int64_t at = 5; at < values.numel(); at += 1 + values.numel() / 7) {
                float& value = values.data<float>()[at];
                const float kept = value, step = 0.01f;
                value = kept + step;
                const double above = loss();
                value = kept - step;
                const double below = loss();
                value = kept;
                const double want = (above - below) / (2.0 * step);
                EXPECT_NEAR(grad.data<float>()[at], want, 2e-3 + 5e-3 * std::abs(want))
                    << name << " " << at;
            }
        };
        for (const Parameter* p : layer.parameters()) check(p->name, p->value, p->grad);
        check("x", x, dx);
    }
}

// By the formula, from what the layer keeps: rows times (gain / rms)^lambda.
TEST(AttentionAnnealTest, QueriesAreScaledByPowersOfTheGainOverTheRms) {
    AttentionConfig config = small_config();
    config.rope.rotary_fraction = 0.0;
    OneRankLayer layer(config);
    make_positive(layer);
    const double lambda = 0.6;
    layer->set_lambda(scalar(lambda));
    AttentionSaved saved;
    layer->forward(gaussian({1, 5, kWidth}, kFp32, 1), {}, saved, nullptr);
    const std::vector<double> q = to_doubles(saved.qkv.slice(2, 0, 128));
    const std::vector<double> gain = to_doubles(layer.parameter("q_gain").value);
    std::vector<double> want(q.size());
    for (std::size_t row = 0; row < q.size(); row += 32) {
        double squares = 0.0;
        for (std::size_t i = row; i < row + 32; ++i) squares += q[i] * q[i];
        const double rms = std::sqrt(squares / 32.0 + 1e-6);
        for (std::size_t i = row; i < row + 32; ++i) {
            want[i] = q[i] * std::pow(gain[i % 128] / rms, static_cast<float>(lambda));
        }
    }
    EXPECT_TRUE(near(saved.q, want, 2e-6, 1e-7));
}

TEST(AttentionAnnealTest, NormsThatAreNotOneRmsAHeadRefuseIt) {
    OneRankLayer unit(small_config(Kind::kL2)), plain(small_config(Kind::kNone));
    EXPECT_THROW(unit->set_lambda(scalar(0.5)), Error);
    EXPECT_THROW(plain->set_lambda(scalar(0.5)), Error);
    unit->set_lambda({});
}

TEST(AttentionAnnealTest, GainsAreWhatAFirstPhaseTrains) {
    OneRankLayer layer(small_config());
    for (const Parameter* p : layer.parameters()) {
        const std::string name = testing::short_name(p->name);
        EXPECT_EQ(p->first_phase, name == "q_gain" || name == "k_gain") << name;
    }
}

}  // namespace
}  // namespace evenkeel
