// A model that is given QK-norm: what it becomes, and that nothing else of it changes.
#include "model/retrofit/retrofit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/tiny_model.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::same_bits;
using testing::SoloGrid;

// Four query heads, two key heads, two layers, no norm.
ModelConfig plain_model() {
    ModelConfig config = testing::tiny_model();
    config.attention.qk_norm = {};
    config.attention.qk_norm.kind = QkNormKind::kNone;
    return config;
}

std::string refusal(const ModelConfig& config, const RetrofitOptions& options = {}) {
    try {
        retrofitted_config(config, options);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        return error.what();
    }
    return "not refused";
}

std::vector<Batch> some_batches(const ModelConfig& config, int count) {
    std::vector<Batch> batches;
    for (int i = 0; i < count; ++i)
        batches.push_back(testing::random_batch(2, 16, config.vocab_size, 7 + i));
    return batches;
}

TEST(RetrofitConfig, KeepsEverythingButTheNorm) {
    ModelConfig config = plain_model();
    config.method = "plain";
    config.attention.softmax_scale = 0.3;
    const ModelConfig got = retrofitted_config(config, {"1", 40, 12.5});
    EXPECT_EQ(got.method, "");
    EXPECT_EQ(got.attention.softmax_scale, 0.3);
    EXPECT_EQ(got.attention.qk_norm.kind, QkNormKind::kRms);
    EXPECT_EQ(got.attention.qk_norm.gain, QkNormConfig::Gain::kPerHeadChannel);
    EXPECT_EQ(got.attention.qk_norm.anneal_steps, 40);
    EXPECT_EQ(got.attention.qk_norm.gain_bound, 12.5);
    EXPECT_EQ(got.layer_attention(0).qk_norm.kind, QkNormKind::kNone);
    EXPECT_EQ(got.layer_attention(1).qk_norm.kind, QkNormKind::kRms);
    EXPECT_EQ(got.attention.num_heads, config.attention.num_heads);
    EXPECT_EQ(retrofitted_config(plain_model(), {}).attention.logit_scale(),
              plain_model().attention.logit_scale());
}

TEST(RetrofitConfig, RefusesWhatHasANormOrSomethingInItsPlace) {
    const auto expect = [](const ModelConfig& config, const std::string& words) {
        const std::string text = refusal(config);
        EXPECT_NE(text.find(words), std::string::npos) << text;
    };
    ModelConfig config = plain_model();
    config.attention.qk_norm.kind = QkNormKind::kLayerNorm;
    config.qk_norm_layers = "0";
    expect(config, "kind is layer_norm, scope head, in layer 0;");
    config = plain_model();
    config.attention.qk_norm.kind = QkNormKind::kRms;
    config.attention.qk_norm.scope = QkNormConfig::Scope::kFullWidth;
    expect(config, "full_width");
    config.attention.qk_norm.scope = QkNormConfig::Scope::kHead;
    config.attention.qk_norm.anneal_steps = 30;
    expect(config, "comes in over its first 30 updates");
    config = plain_model();
    config.architecture = Architecture::kNgpt;
    expect(config, "ngpt");
    config = plain_model();
    config.sigma_reparam = true;
    expect(config, "sigma_reparam");
}

TEST(RetrofitConfig, RefusesLayersThatThereAreNot) {
    for (const char* layers : {"2", "0-2", "1-0", "x", "0,"}) {
        const std::string text = refusal(plain_model(), {layers, 0, 0.0});
        EXPECT_NE(text.find("want layers from 0 to 1"), std::string::npos) << text;
    }
}

// Layer 0 has the same input with and without a norm, so that it shows the same queries and keys; at position 0
// nothing turns, so that there the kernel's own q is what is seen where there is no norm.
TEST(Retrofit, ObserversSeeQueriesAndKeysBeforeNormAndRotation) {
    const SoloGrid solo;
    const ModelConfig plain = plain_model();
    LanguageModel model(solo.grid, plain, 1);
    LanguageModel normed(solo.grid, retrofitted_config(plain, {}), 1);
    const Batch batch = testing::random_batch(2, 16, plain.vocab_size, 3);
    std::vector<Tensor> q, k;
    const auto keep = [&](const LanguageModel::AttentionView& view) {
        EXPECT_EQ(view.stats.max_logit.numel(), plain.attention.num_heads);
        if (view.layer != 0) return;
        q.push_back(view.q.clone());
        k.push_back(view.k.clone());
    };
    EXPECT_EQ(model.observe(batch, keep), model.evaluate(batch));
    EXPECT_EQ(normed.observe(batch, keep), normed.evaluate(batch));
    ASSERT_EQ(q.size(), 2u);
    EXPECT_EQ(q[0].shape(), (Shape{2, 16, plain.attention.num_heads, plain.attention.head_dim}));
    EXPECT_EQ(k[0].shape(), (Shape{2, 16, plain.attention.num_kv_heads, plain.attention.head_dim}));
    EXPECT_TRUE(same_bits(q[0], q[1]));
    EXPECT_TRUE(same_bits(k[0], k[1]));
}

TEST(Retrofit, WeightsStayAndGainsJoinThem) {
    const SoloGrid solo;
    const ModelConfig plain = plain_model();
    LanguageModel before(solo.grid, plain, 1);
    testing::train_steps(before, 0, 2);
    LanguageModel after(solo.grid, retrofitted_config(plain, {}), 9);
    std::vector<LayerGains> gains(2);
    const auto& attention = plain.attention;
    gains[1].q = Tensor::full({attention.num_heads, attention.head_dim}, 1.5f, DType::kFloat32);
    gains[1].k = Tensor::full({attention.num_kv_heads, attention.head_dim}, 0.5f, DType::kFloat32);
    gains[0] = gains[1];
    retrofit_weights(before, after, gains);
    std::size_t old = 0;
    for (const Parameter* parameter : after.parameters()) {
        const bool is_gain = parameter->name.ends_with("_gain");
        const Tensor* want = nullptr;
        for (const Parameter* candidate : before.parameters()) {
            if (candidate->name != parameter->name) continue;
            want = &candidate->master;
            EXPECT_TRUE(same_bits(candidate->exp_avg, parameter->exp_avg)) << parameter->name;
            EXPECT_TRUE(same_bits(candidate->exp_avg_sq, parameter->exp_avg_sq)) << parameter->name;
            ++old;
        }
        EXPECT_EQ(is_gain, want == nullptr) << parameter->name;
        if (want == nullptr) want = parameter->name.ends_with("q_gain") ? &gains[1].q : &gains[1].k;
        EXPECT_TRUE(same_bits(*want, parameter->master)) << parameter->name;
    }
    EXPECT_EQ(old, before.parameters().size());
    EXPECT_EQ(after.parameters().size(), old + 4);
    gains.pop_back();
    EXPECT_THROW(retrofit_weights(before, after, gains), Error) << "gains of one layer for two";
}

TEST(Retrofit, MeasuresLossLogitsAndEntropyOfAllBatches) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, plain_model(), 1);
    const std::vector<Batch> batches = some_batches(model.config(), 3);
    const HeadMeasurements got = measure_heads(solo.grid, model, batches);
    double loss = 0.0;
    for (const Batch& batch : batches) loss += model.evaluate(batch) / 3.0;
    EXPECT_NEAR(got.loss, loss, 1e-12);
    EXPECT_EQ(got.max_logit.rows, model.config().num_layers);
    EXPECT_EQ(got.max_logit.columns, model.config().attention.num_heads);
    // Of one batch after the other, the same by itself.
    for (std::size_t i = 0; i < got.max_logit.values.size(); ++i) {
        float highest = -INFINITY, entropy = 0.0f;
        for (const Batch& batch : batches) {
            const HeadMeasurements one = measure_heads(solo.grid, model, {&batch, 1});
            highest = std::max(highest, one.max_logit.values[i]);
            entropy += one.entropy.values[i] / 3.0f;
        }
        EXPECT_EQ(got.max_logit.values[i], highest) << i;
        EXPECT_NEAR(got.entropy.values[i], entropy, 1e-5f) << i;
    }
    EXPECT_THROW(measure_heads(solo.grid, model, {}), Error);
}

TEST(Retrofit, CalibratesEveryLayerOnAllBatches) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, plain_model(), 1);
    const std::vector<Batch> batches = some_batches(model.config(), 3);
    const ModelCalibration got = calibrate(solo.grid, model, batches);
    ASSERT_EQ(got.layers.size(), 2u);
    EXPECT_EQ(got.measured.loss, measure_heads(solo.grid, model, batches).loss);
    // The mean rms of a head's rows, from what an observer sees.
    const std::int64_t D = model.config().attention.head_dim;
    double sum = 0.0;
    std::int64_t rows = 0;
    for (const Batch& batch : batches) {
        model.observe(batch, [&](const LanguageModel::AttentionView& view) {
            if (view.layer != 1) return;
            const Tensor k = view.k.slice(2, 1, 2).contiguous();
            for (std::int64_t row = 0; row < k.numel() / D; ++row, ++rows) {
                double squares = 0.0;
                for (std::int64_t d = 0; d < D; ++d) {
                    squares += std::pow(k.data<float>()[row * D + d], 2);
                }
                sum += std::sqrt(squares / static_cast<double>(D) + 1e-6);
            }
        });
    }
    EXPECT_EQ(got.layers[1].sequences(), 6);
    EXPECT_NEAR(got.layers[1].k_rms(1).mean(), sum / static_cast<double>(rows), 1e-6);
    EXPECT_EQ(static_cast<float>(got.layers[1].observed_max_logit(3)),
              got.measured.max_logit.values[7]);
}

TEST(Retrofit, NamesTheWeightThatIsNotFinite) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, plain_model(), 1);
    EXPECT_NO_THROW(check_finite_weights(solo.grid, model));
    for (const Parameter* parameter : model.parameters()) {
        if (parameter->name == "layers.1.attention.wk") parameter->master.data<float>()[5] = NAN;
    }
    try {
        check_finite_weights(solo.grid, model);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kNonFinite);
        EXPECT_NE(std::string(error.what()).find("layers.1.attention.wk"), std::string::npos);
    }
}

}  // namespace
}  // namespace evenkeel
