// Models whose QK-norm comes in by and by, and whose gains are held.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/gain.h"
#include "attention/logit_bound.h"
#include "framework/storage/tensor_source.h"
#include "framework/stream.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::find;
using testing::random_batch;
using testing::same_bits;
using testing::SoloGrid;
using testing::train_steps;

ModelConfig annealed(ModelConfig config, std::int64_t steps) {
    config.attention.qk_norm.anneal_steps = steps;
    return config;
}

ModelConfig held(ModelConfig config, double bound, double pull) {
    config.attention.qk_norm.gain_bound = bound;
    config.attention.qk_norm.gain_pull = pull;
    return config;
}

float updates_of(LanguageModel& model) {
    return find(model, "qk_norm_anneal").master.to(Device::kCpu).data<float>()[0];
}

double lambda_of(LanguageModel& model) {
    const auto scalars = model.scalar_metrics();
    EXPECT_EQ(scalars.size(), 1u);
    EXPECT_EQ(scalars[0].first, "qk_norm_lambda");
    return scalars[0].second;
}

const MetricTable& table_of(const std::vector<MetricTable>& tables, const std::string& name) {
    for (const MetricTable& table : tables) {
        if (table.name == name) return table;
    }
    throw_error(ErrorCode::kInvalidArgument, "test", "no table " + name);
}

Tensor decoded(LanguageModel& model, const Tensor& tokens) {
    const auto state = model.start_decoding(tokens.size(0), tokens.size(1));
    return model.decode(*state, tokens);
}

TEST(QkNormAnnealTest, StartsAsTheModelWithoutNormAndEndsAsTheOneWithIt) {
    const SoloGrid solo;
    ModelConfig plain_config = testing::tiny_model();
    plain_config.attention.qk_norm.kind = QkNormKind::kNone;
    LanguageModel plain(solo.grid, plain_config, 1), normed(solo.grid, testing::tiny_model(), 1);
    LanguageModel model(solo.grid, annealed(testing::tiny_model(), 3), 1);
    const Tensor tokens = random_batch(2, 20, 32, 3).tokens;
    EXPECT_TRUE(same_bits(model.local_logits(tokens), plain.local_logits(tokens)));
    EXPECT_TRUE(same_bits(decoded(model, tokens), decoded(plain, tokens)));
    for (const double lambda : {1.0 / 3.0, 2.0 / 3.0}) {
        model.finish_update();
        EXPECT_NEAR(lambda_of(model), lambda, 1e-7);
        EXPECT_FALSE(same_bits(model.local_logits(tokens), plain.local_logits(tokens)));
        EXPECT_FALSE(same_bits(model.local_logits(tokens), normed.local_logits(tokens)));
    }
    for (int more = 0; more < 2; ++more) {
        model.finish_update();
        EXPECT_EQ(lambda_of(model), 1.0);
        EXPECT_EQ(updates_of(model), 3.0f);
        EXPECT_TRUE(same_bits(model.local_logits(tokens), normed.local_logits(tokens)));
        EXPECT_TRUE(same_bits(decoded(model, tokens), decoded(normed, tokens)));
    }
}

TEST(QkNormAnnealTest, ModelsWithoutItHaveNoLambda) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, testing::tiny_model(), 1);
    EXPECT_TRUE(model.scalar_metrics().empty());
}

TEST(QkNormAnnealTest, NothingBoundsTheLogitsBeforeTheEnd) {
    const SoloGrid solo;
    for (const double softcap : {0.0, 30.0}) {
        ModelConfig config = annealed(testing::tiny_model(), 2);
        config.attention.softcap = softcap;
        LanguageModel model(solo.grid, config, 1);
        const auto bound = [&] {
            testing::forward_backward(model, random_batch(2, 20, 32, 3));
            const auto tables = model.head_metrics();
            return table_of(tables, "logit_bound").values[5];
        };
        const float nothing = softcap > 0.0 ? 30.0f : INFINITY;
        EXPECT_EQ(bound(), nothing);
        model.finish_update();
        EXPECT_EQ(bound(), nothing);
        model.finish_update();
        EXPECT_LT(bound(), 6.0f);
    }
}

// At lambda 1/3 and 2/3, by every weight: along the gradient the loss grows by its norm.
TEST(QkNormAnnealTest, TheLossGrowsAlongTheGradientByItsNorm) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, annealed(testing::tiny_model(), 3), 1);
    testing::randomize_gains(model);
    const Batch batch = random_batch(2, 20, 32, 3);
    for (int step = 0; step < 2; ++step) {
        model.finish_update();
        model.buckets().zero_gradients();
        testing::forward_backward(model, batch);
        double squared = 0.0;
        for (const Parameter* p : model.parameters()) {
            for (const double g : testing::to_doubles(p->grad)) squared += g * g;
        }
        const double norm = std::sqrt(squared), distance = 2e-3;
        const auto loss_at = [&](double way) {
            std::vector<Tensor> kept;
            for (Parameter* p : model.parameters()) {
                kept.push_back(p->master.clone());
                for (std::int64_t i = 0; i < p->master.numel(); ++i) {
                    p->master.data<float>()[i] +=
                        static_cast<float>(way / norm) * p->grad.data<float>()[i];
                }
            }
            const double loss = model.evaluate(batch);
            for (std::size_t i = 0; i < kept.size(); ++i) {
                model.parameters()[i]->master.copy_from(kept[i]);
            }
            return loss;
        };
        const double slope = (loss_at(distance) - loss_at(-distance)) / (2.0 * distance);
        EXPECT_NEAR(slope, norm, 2e-3 * norm);
    }
}

TEST(QkNormAnnealTest, CheckpointsGoOnWhereTheyWere) {
    const SoloGrid solo;
    const testing::TemporaryDirectory files;
    const ModelConfig config = held(annealed(testing::tiny_model(), 4), 3.0, 0.1);
    LanguageModel model(solo.grid, config, 1), resumed(solo.grid, config, 2),
        evaluated(solo.grid, config, 3);
    train_steps(model, 0, 2);
    model.save_state(files.path());
    resumed.load_state(files.path());
    evaluated.load_weights(files.path());
    EXPECT_EQ(lambda_of(resumed), 0.5);
    const Tensor tokens = random_batch(2, 20, 32, 3).tokens;
    EXPECT_TRUE(same_bits(evaluated.local_logits(tokens), model.local_logits(tokens)));
    EXPECT_TRUE(same_bits(decoded(evaluated, tokens), decoded(model, tokens)));
    EXPECT_EQ(train_steps(resumed, 2, 3).losses, train_steps(model, 2, 3).losses);
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
        EXPECT_TRUE(same_bits(resumed.parameters()[i]->master, model.parameters()[i]->master))
            << model.parameters()[i]->name;
    }
}

TEST(QkNormAnnealTest, WhatHasComeInIsTheWeightsOfAModelThatAlwaysHadIt) {
    const SoloGrid solo;
    const ModelConfig config = annealed(testing::tiny_model(), 3);
    LanguageModel model(solo.grid, config, 1), plain(solo.grid, annealed(config, 0), 2);
    for (const float updates : {2.0f, 3.0f}) {
        const testing::TemporaryDirectory files;
        init_constant(find(model, "qk_norm_anneal"), updates);
        model.save_state(files.path());
        if (updates < 3.0f) {
            EXPECT_THROW(plain.load_weights(files.path()), Error);
            continue;
        }
        plain.load_weights(files.path());
        for (Parameter* parameter : plain.parameters()) {
            EXPECT_TRUE(same_bits(parameter->master, find(model, parameter->name).master))
                << parameter->name;
        }
    }
}

TEST(QkNormAnnealTest, ANumberOfUpdatesThatIsNoneIsRefused) {
    const SoloGrid solo;
    const ModelConfig config = annealed(testing::tiny_model(), 4);
    for (const float wrong : {-1.0f, NAN}) {
        const testing::TemporaryDirectory files;
        LanguageModel model(solo.grid, config, 1);
        init_constant(find(model, "qk_norm_anneal"), wrong);
        model.save_state(files.path());
        EXPECT_THROW(model.load_state(files.path()), Error) << wrong;
    }
}

// Of all layers, from the model's own gains.
std::vector<double> bounds_of(LanguageModel& model) {
    const AttentionConfig& attention = model.config().attention;
    std::vector<double> all;
    for (std::int64_t layer = 0; layer < model.config().num_layers; ++layer) {
        const std::string prefix = concat("layers.", layer, ".attention.");
        const auto gains = [&](const char* name, std::int64_t heads) {
            return effective_gain(find(model, prefix + name).master, attention.qk_norm, heads,
                                  attention.head_dim);
        };
        const auto bounds = logit_bounds(attention, gains("q_gain", attention.num_heads),
                                         gains("k_gain", attention.num_kv_heads),
                                         attention.num_heads, attention.num_kv_heads);
        all.insert(all.end(), bounds.begin(), bounds.end());
    }
    return all;
}

TEST(GainHoldTest, NoUpdateTakesABoundBeyondTheLimit) {
    const SoloGrid solo;
    for (const double offset : {0.0, 1.0}) {
        ModelConfig config = held(testing::tiny_model(), 5.7, 0.0);
        config.attention.qk_norm.gain_offset = offset;
        LanguageModel model(solo.grid, config, 1);
        ModelConfig free_config = testing::tiny_model();
        free_config.attention.qk_norm.gain_offset = offset;
        LanguageModel free(solo.grid, free_config, 1);
        double highest = 0.0;
        for (int step = 0; step < 5; ++step) {
            train_steps(model, step, 1);
            train_steps(free, step, 1);
            for (const double bound : bounds_of(model)) {
                EXPECT_LE(bound, 5.7 * (1.0 + 1e-6)) << "step " << step;
            }
            for (const double bound : bounds_of(free)) highest = std::max(highest, bound);
        }
        EXPECT_GT(highest, 5.8) << "or nothing is shown";
    }
}

TEST(GainHoldTest, StartsAreTheFirstGainsAndPullTowardsThem) {
    const SoloGrid solo;
    const ModelConfig config = held(testing::tiny_model(), 0.0, 0.25);
    LanguageModel model(solo.grid, config, 1);
    Parameter& gain = find(model, "layers.1.attention.k_gain");
    const Parameter& start = find(model, "layers.1.attention.k_gain_start");
    EXPECT_TRUE(same_bits(start.master, gain.master));
    EXPECT_FALSE(start.trained);
    EXPECT_FALSE(start.weight_decay);
    init_constant(gain, 3.0f);
    model.finish_update();
    EXPECT_EQ(gain.master.data<float>()[7], 2.5f);
    EXPECT_EQ(start.master.data<float>()[7], 1.0f);
}

TEST(GainHoldTest, OnlyAPullHasStarts) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, held(testing::tiny_model(), 5.0, 0.0), 1);
    for (const Parameter* p : model.parameters()) EXPECT_FALSE(p->name.ends_with("_start"));
}

// The weights of another model: names, and where it has them.
class WeightsOf : public TensorSource {
  public:
    explicit WeightsOf(LanguageModel& model) : model_(model) {}
    std::string origin() const override { return "test"; }
    std::vector<std::string> names() const override {
        std::vector<std::string> all;
        for (const Parameter* p : model_.parameters()) all.push_back(p->name);
        return all;
    }
    bool contains(const std::string& name) const override {
        for (const Parameter* p : model_.parameters()) {
            if (p->name == name) return true;
        }
        return false;
    }
    Shape shape(const std::string& name) const override { return find(model_, name).global_shape; }
    DType dtype(const std::string&) const override { return DType::kFloat32; }
    void read_slice(const std::string& name,
                    int dim,
                    std::int64_t begin,
                    std::int64_t end,
                    const Tensor& out) const override {
        out.copy_from(find(model_, name).master.slice(dim, begin, end));
    }

  private:
    LanguageModel& model_;
};

// Weights without starts, as from another program: the gains that are read are the first ones.
TEST(GainHoldTest, WeightsWithoutStartsBeginWithTheirGains) {
    const SoloGrid solo;
    LanguageModel source(solo.grid, testing::tiny_model(), 1);
    testing::randomize_gains(source);
    LanguageModel model(solo.grid, held(annealed(testing::tiny_model(), 5), 0.0, 0.5), 2);
    model.load_weights(WeightsOf(source));
    EXPECT_EQ(lambda_of(model), 0.0);
    for (const char* name : {"layers.0.attention.q_gain", "layers.1.attention.k_gain"}) {
        const Tensor& want = find(source, name).master;
        EXPECT_TRUE(same_bits(find(model, name).master, want)) << name;
        EXPECT_TRUE(same_bits(find(model, std::string(name) + "_start").master, want)) << name;
    }
    // Weights that have some keep them.
    model.finish_update();
    LanguageModel later(solo.grid, held(annealed(testing::tiny_model(), 5), 0.0, 0.5), 3);
    init_constant(find(model, "layers.0.attention.q_gain"), 9.0f);
    later.load_weights(WeightsOf(model));
    EXPECT_NEAR(lambda_of(later), 0.2, 1e-7);
    EXPECT_TRUE(same_bits(find(later, "layers.0.attention.q_gain_start").master,
                          find(source, "layers.0.attention.q_gain").master));
}

class RetrofitRulesOnGpus : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(,
                         RetrofitRulesOnGpus,
                         ::testing::ValuesIn(testing::test_gpus()),
                         testing::device_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RetrofitRulesOnGpus);

// Recorded passes read lambda and the gains as they are when they are replayed, and both devices train alike.
TEST_P(RetrofitRulesOnGpus, ReplayedStepsGiveTheSameBitsAndFollowTheCpu) {
    const Stream stream;
    const StreamScope scope(stream);
    const SoloGrid cpu_grid;
    const auto world = make_single_communicator();
    const ProcessGrid gpu_grid(*world, {}, GetParam());
    ModelConfig config = held(annealed(testing::small_gpu_model(), 4), 7.0, 0.05);
    config.num_layers = 1;
    config.attention.num_heads = 2;
    config.attention.num_kv_heads = 1;
    LanguageModel recorded(gpu_grid, config, 1), direct(gpu_grid, config, 1),
        cpu(cpu_grid.grid, config, 1);
    direct.set_graphs(false);
    config.type = ComputeType::kFp32;
    LanguageModel exact(cpu_grid.grid, config, 1);
    const auto got = train_steps(recorded, 0, 5), want = train_steps(direct, 0, 5);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.norms, want.norms);
    EXPECT_EQ(lambda_of(recorded), 1.0);
    for (std::size_t i = 0; i < direct.parameters().size(); ++i) {
        EXPECT_TRUE(same_bits(recorded.parameters()[i]->master.to(Device::kCpu),
                              direct.parameters()[i]->master.to(Device::kCpu)))
            << direct.parameters()[i]->name;
    }
    testing::expect_follows(want, train_steps(exact, 0, 5), train_steps(cpu, 0, 5));
}

}  // namespace
}  // namespace evenkeel
