// Models and training runs over several ranks against the same on one: every rank also holds the whole
// model by itself.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "framework/data/byte_dataset.h"
#include "framework/storage/safetensors.h"
#include "model/generate.h"
#include "model/method.h"
#include "tests/support/compare.h"
#include "tests/support/ranks.h"
#include "tests/support/run_files.h"
#include "tests/support/sharded_models.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::distance;
using testing::expect_equal_replicas;
using testing::gather;
using testing::grid_shapes;
using testing::GridShape;
using testing::make_grid;
using testing::name_of;
using testing::random_batch;
using testing::SharedDirectory;
using testing::SoloGrid;

// Two KV heads, so that more than two tensor-parallel ranks replicate them.
ModelConfig test_model() {
    ModelConfig config = testing::tiny_model();
    config.attention.num_heads = 8;
    config.attention.num_kv_heads = 2;
    return config;
}

// The rows of a global batch that a data-parallel rank sees.
Batch part_of(const Batch& batch, const ProcessGrid& grid) {
    const std::int64_t rows = batch.tokens.size(0) / grid.dp_size();
    const std::int64_t begin = rows * grid.dp_rank();
    return {batch.tokens.slice(0, begin, begin + rows).clone(),
            batch.targets.slice(0, begin, begin + rows).clone()};
}

struct Outcome {
    double loss, norm;
};

// Gradients of a step, and its update if `step` is not 0.
Outcome take_step(LanguageModel& model, const Batch& batch, std::int64_t step = 0) {
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    compute_gradients(model, {&batch, 1}, numbers);
    if (step > 0) {
        adamw_step(model.buckets(), {}, 1e-3, 0.0, numbers, step);
        model.finish_update();
    }
    return {numbers.data<double>()[kLossIndex],
            std::sqrt(numbers.data<double>()[kSquaredNormIndex])};
}

std::vector<std::pair<std::string, ModelConfig>> variants() {
    std::vector<std::pair<std::string, ModelConfig>> all = {{"per-head gains", test_model()}};
    all.emplace_back("shared gains, tied embeddings", test_model());
    all.back().second.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
    all.back().second.tied_embeddings = true;
    all.emplace_back("sigma reparam", test_model());
    // With QK-norm the scales of wq and wk would have gradients of rounding errors alone.
    all.back().second.attention.qk_norm.kind = QkNormConfig::Kind::kNone;
    all.back().second.sigma_reparam = true;
    all.emplace_back("nGPT", test_model());
    apply_method("ngpt", all.back().second);
    all.emplace_back("biases", test_model());
    all.back().second.attention.qkv_bias = all.back().second.attention.output_bias = true;
    all.back().second.feed_forward_bias = true;
    all.emplace_back("no norm, GELU", test_model());
    all.back().second.attention.qk_norm.kind = QkNormConfig::Kind::kNone;
    all.back().second.activation = Activation::kGelu;
    return all;
}

TEST(DistributedModelTest, LossAndGradientsEqualThoseOfOneRank) {
    for (const auto& [name, config] : variants()) {
        const SoloGrid solo;
        LanguageModel one(solo.grid, config, 1);
        const Batch batch = random_batch(4, 17, config.vocab_size, 3);
        const Outcome want = take_step(one, batch);
        for (const GridShape& shape : grid_shapes()) {
            const ProcessGrid grid = make_grid(shape);
            SCOPED_TRACE(name + ", " + name_of(grid));
            LanguageModel many(grid, config, 1);
            const Outcome got = take_step(many, part_of(batch, grid));
            EXPECT_LT(testing::relative_difference(got.loss, want.loss), 1e-6);
            EXPECT_LT(testing::relative_difference(got.norm, want.norm), 1e-5);
            for (std::size_t i = 0; i < many.parameters().size(); ++i) {
                const Parameter& parameter = *many.parameters()[i];
                const Tensor got = gather(grid, parameter, parameter.grad);
                EXPECT_LT(distance(got, one.parameters()[i]->grad), 1e-5) << parameter.name;
            }
        }
    }
}

TEST(DistributedModelTest, TwentyStepsEqualThoseOfOneRank) {
    for (const auto& [name, config] : variants()) {
        const SoloGrid solo;
        LanguageModel one(solo.grid, config, 1);
        for (int step = 0; step < 20; ++step) {
            take_step(one, random_batch(4, 17, config.vocab_size, step), step + 1);
        }
        for (const GridShape& shape : grid_shapes()) {
            const ProcessGrid grid = make_grid(shape);
            SCOPED_TRACE(name + ", " + name_of(grid));
            LanguageModel many(grid, config, 1);
            for (int step = 0; step < 20; ++step) {
                take_step(many, part_of(random_batch(4, 17, config.vocab_size, step), grid),
                          step + 1);
            }
            for (std::size_t i = 0; i < many.parameters().size(); ++i) {
                const Parameter& parameter = *many.parameters()[i];
                const Tensor got = gather(grid, parameter, parameter.master);
                EXPECT_LT(distance(got, one.parameters()[i]->master), 1e-5) << parameter.name;
            }
            expect_equal_replicas(grid, many, config);
        }
    }
}

TEST(DistributedModelTest, ReplicasStayBitEqualInBfloat16) {
    ModelConfig config = test_model();
    config.type = ComputeType::kBf16;
    for (const GridShape& shape : grid_shapes()) {
        const ProcessGrid grid = make_grid(shape);
        SCOPED_TRACE(name_of(grid));
        LanguageModel model(grid, config, 1);
        for (int step = 0; step < 20; ++step) {
            take_step(model, part_of(random_batch(4, 17, config.vocab_size, step), grid), step + 1);
        }
        expect_equal_replicas(grid, model, config);
    }
}

struct Traffic {
    CommunicationCounts pass, reduction;  // of forward and backward, of reducing gradients
};

Traffic traffic_of(const ProcessGrid& grid, const ModelConfig& config) {
    LanguageModel model(grid, config, 1);
    const Batch batch = part_of(random_batch(4, 16, config.vocab_size, 1), grid);
    CommunicationCounts& counts = grid.tensor().counts();
    Traffic traffic;
    counts = {};
    testing::forward_backward(model, batch);
    traffic.pass = counts;
    counts = {};
    reduce_gradients(grid, model.buckets(), config.attention.num_kv_heads);
    traffic.reduction = counts;
    return traffic;
}

TEST(DistributedModelTest, CommunicatesFourTimesALayerAndNeverForTheNorm) {
    const ProcessGrid grid = make_grid({testing::world().size(), 1});
    ModelConfig config = test_model();
    const Traffic two_layers = traffic_of(grid, config);
    // Embedding, the two collectives of the loss, and the projection's input gradient.
    EXPECT_EQ(two_layers.pass.all_reduces, 2 * 4 + 4);
    EXPECT_EQ(two_layers.pass.all_gathers, 0);
    EXPECT_EQ(two_layers.pass.reduce_scatters, 0);
    EXPECT_EQ(two_layers.pass.broadcasts, 0);
    EXPECT_EQ(two_layers.reduction.all_reduces, 0) << "per-head gains live with their heads";

    config.num_layers = 5;
    EXPECT_EQ(traffic_of(grid, config).pass.all_reduces, 5 * 4 + 4);
    config.num_layers = 2;

    config.attention.qk_norm.kind = QkNormConfig::Kind::kNone;
    const Traffic plain = traffic_of(grid, config);
    EXPECT_EQ(plain.pass.all_reduces, two_layers.pass.all_reduces);
    EXPECT_EQ(plain.pass.bytes, two_layers.pass.bytes);
    EXPECT_EQ(plain.reduction.bytes, two_layers.reduction.bytes);

    config.attention.qk_norm.kind = QkNormConfig::Kind::kRms;
    config.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
    const Traffic shared = traffic_of(grid, config);
    EXPECT_EQ(shared.pass.all_reduces, two_layers.pass.all_reduces);
    EXPECT_EQ(shared.reduction.all_reduces, 1) << "all shared gains travel in one buffer";
}

TEST(DistributedModelTest, HeadMetricsEqualThoseOfOneRank) {
    for (const auto kind : {QkNormConfig::Kind::kRms, QkNormConfig::Kind::kNone}) {
        ModelConfig config = test_model();
        config.attention.qk_norm.kind = kind;
        config.attention.qkv_bias = kind == QkNormConfig::Kind::kNone;
        const SoloGrid solo;
        LanguageModel one(solo.grid, config, 1);
        testing::randomize_gains(one);
        const Batch batch = random_batch(4, 17, config.vocab_size, 3);
        testing::forward_backward(one, batch);
        const auto want = one.head_metrics();
        for (const GridShape& shape : grid_shapes()) {
            const ProcessGrid grid = make_grid(shape);
            SCOPED_TRACE(name_of(grid));
            LanguageModel many(grid, config, 1);
            testing::randomize_gains(many);
            testing::forward_backward(many, part_of(batch, grid));
            const auto got = many.head_metrics();
            ASSERT_EQ(got.size(), want.size());
            for (std::size_t table = 0; table < want.size(); ++table) {
                EXPECT_EQ(got[table].name, want[table].name);
                const bool of_keys =
                    got[table].name.find('k') == 0 || got[table].name.find("wk_") == 0;
                EXPECT_EQ(got[table].columns,
                          of_keys ? config.attention.num_kv_heads : config.attention.num_heads)
                    << got[table].name;
                ASSERT_EQ(got[table].values.size(), want[table].values.size());
                for (std::size_t i = 0; i < want[table].values.size(); ++i) {
                    EXPECT_NEAR(got[table].values[i], want[table].values[i],
                                1e-4 * std::abs(want[table].values[i]))
                        << got[table].name << " " << i;
                }
            }
        }
    }
}

TEST(DistributedModelTest, GeneratesWhatOneRankGenerates) {
    ModelConfig config = test_model();
    config.vocab_size = 256;
    const SoloGrid solo;
    LanguageModel one(solo.grid, config, 1);
    for (const GridShape& shape : grid_shapes()) {
        const ProcessGrid grid = make_grid(shape);
        LanguageModel many(grid, config, 1);
        for (double temperature : {0.0, 0.8}) {
            const SampleOptions options{.tokens = 30, .temperature = temperature};
            EXPECT_EQ(generate(many, "keel", options), generate(one, "keel", options))
                << name_of(grid) << ", temperature " << temperature;
        }
    }
}

TEST(DistributedModelTest, LoadsCheckpointsOfAnotherGrid) {
    ModelConfig config = test_model();
    const SharedDirectory files;
    const ProcessGrid grid = make_grid(grid_shapes().back());
    LanguageModel saved(grid, config, 1);
    for (int step = 0; step < 2; ++step) {
        take_step(saved, part_of(random_batch(4, 17, config.vocab_size, step), grid), step + 1);
    }
    saved.save_state(files.path());
    saved.barrier();
    const SoloGrid solo;
    LanguageModel one(solo.grid, config, 2);
    one.load_state(files.path());
    const ProcessGrid other_grid = make_grid(grid_shapes().front());
    LanguageModel other(other_grid, config, 3);
    other.load_state(files.path());
    for (std::size_t i = 0; i < saved.parameters().size(); ++i) {
        const Parameter &a = *saved.parameters()[i], &b = *one.parameters()[i],
                        &c = *other.parameters()[i];
        for (Tensor Parameter::*part :
             {&Parameter::master, &Parameter::exp_avg, &Parameter::exp_avg_sq}) {
            const Tensor want = gather(grid, a, a.*part);
            EXPECT_TRUE(testing::same_bits(b.*part, want)) << a.name;
            EXPECT_TRUE(testing::same_bits(gather(other_grid, c, c.*part), want)) << a.name;
        }
    }
}

TEST(DistributedModelTest, AllRanksNameTheTensorThatOneRankSpoiled) {
    const int last = testing::world().size() - 1;
    for (const GridShape& shape : grid_shapes()) {
        const ProcessGrid grid = make_grid(shape);
        SCOPED_TRACE(name_of(grid));
        LanguageModel model(grid, test_model(), 1);
        const Batch batch = part_of(random_batch(4, 8, 32, 1), grid);
        EXPECT_EQ(model.locate_non_finite({batch}), "");
        if (testing::world().rank() == last) {
            testing::find(model, "layers.1.attention.wq").value.fill(3e38f);
        }
        EXPECT_EQ(model.locate_non_finite({batch}), "layers.1.attention.qkv (forward)");
        if (testing::world().rank() == last) {
            testing::find(model, "layers.0.feed_forward.w_up").value.data<float>()[1] = NAN;
        }
        EXPECT_EQ(model.locate_non_finite({batch}), "layers.0.feed_forward.w_up (weight)");
    }
}

class DistributedRunTest : public ::testing::Test {
  protected:
    DistributedRunTest() {
        if (testing::world().rank() == 0) testing::write_text(files_.path("text"), 30000);
        testing::world().barrier();
        model_ = test_model();
        model_.vocab_size = 256;
        model_.init_std = model_.embedding_init_std = 0.05;
        trainer_.steps = 10;
        trainer_.batch_size = 8;
        trainer_.micro_batch_size = 2;
        trainer_.seq_len = 16;
        trainer_.eval_sequences = 6;
        schedule_.warmup_steps = 4;
        schedule_.peak_lr = 3e-3;
    }

    TrainResult run(const ProcessGrid& grid,
                    const std::string& name,
                    const std::function<void(LanguageModel&)>& prepare = {}) {
        const ByteDataset data({files_.path("text"), 0.1}, trainer_.seq_len);
        LanguageModel model(grid, model_, static_cast<std::uint64_t>(trainer_.seed));
        if (prepare) prepare(model);
        trainer_.run_dir = files_.path(name);
        return train(model, data, trainer_, schedule_, {}, "{}\n");
    }

    SharedDirectory files_;
    ModelConfig model_;
    TrainerConfig trainer_;
    ScheduleConfig schedule_;
};

TEST_F(DistributedRunTest, FollowsTheLossOfOneRank) {
    const SoloGrid solo;
    const TrainResult want = run(solo.grid, concat("solo", testing::world().rank()));
    for (const GridShape& shape : grid_shapes()) {
        const ProcessGrid grid = make_grid(shape);
        SCOPED_TRACE(name_of(grid));
        trainer_.run_dir = "";
        const TrainResult got = run(grid, concat("tp", shape.tensor));
        EXPECT_EQ(got.losses.size(), want.losses.size());
        for (std::size_t i = 0; i < want.losses.size(); ++i) {
            EXPECT_LT(testing::relative_difference(got.losses[i], want.losses[i]), 1e-5)
                << "step " << i + 1;
        }
        EXPECT_LT(testing::relative_difference(got.validation_loss, want.validation_loss), 1e-5);
    }
}

TEST_F(DistributedRunTest, ResumesBitForBit) {
    model_.type = ComputeType::kBf16;
    const ProcessGrid grid = make_grid(grid_shapes().back());
    const TrainResult want = run(grid, "straight");
    trainer_.stop_at_step = 5;
    run(grid, "halves");
    trainer_.stop_at_step = 0;
    trainer_.resume = true;
    const TrainResult got = run(grid, "halves");
    EXPECT_EQ(got.steps, 5);
    EXPECT_EQ(got.validation_loss, want.validation_loss);
    EXPECT_TRUE(testing::same_files(got.checkpoint, want.checkpoint));
}

TEST_F(DistributedRunTest, StartsFromAnotherRunsWeightsAsOneRankDoes) {
    const ProcessGrid first_grid = make_grid(grid_shapes().back());
    run(first_grid, "first");
    trainer_.init_from = files_.path("first");
    trainer_.first_phase_steps = 4;
    trainer_.steps = 8;
    const SoloGrid solo;
    const TrainResult want = run(solo.grid, concat("solo", testing::world().rank()));
    for (const GridShape& shape : grid_shapes()) {
        const ProcessGrid grid = make_grid(shape);
        SCOPED_TRACE(name_of(grid));
        const std::string name = concat("next", shape.tensor);
        trainer_.resume = false;
        trainer_.stop_at_step = 2;  // within the first phase
        run(grid, name);
        trainer_.stop_at_step = 0;
        trainer_.resume = true;
        const TrainResult got = run(grid, name);
        ASSERT_EQ(got.losses.size(), 6u);
        for (std::size_t i = 0; i < 6; ++i) {
            EXPECT_LT(testing::relative_difference(got.losses[i], want.losses[i + 2]), 1e-5)
                << "step " << i + 3;
        }
        EXPECT_LT(testing::relative_difference(got.validation_loss, want.validation_loss), 1e-5);
    }
    model_.width *= 2;
    trainer_.resume = false;
    EXPECT_THROW(run(first_grid, "wider"), Error);
}

TEST_F(DistributedRunTest, AllRanksSkipTheStepThatOneRankSpoiled) {
    trainer_.steps = 2;
    trainer_.non_finite = TrainerConfig::NonFinite::kSkip;
    trainer_.replica_check_interval = 0;  // it would find the spoiled copy
    const ProcessGrid grid = make_grid(grid_shapes().back());
    const int last = testing::world().size() - 1;
    const TrainResult result = run(grid, "skips", [&](LanguageModel& model) {
        if (testing::world().rank() == last) {
            testing::find(model, "layers.1.attention.wv").value.fill(3e38f);
        }
    });
    EXPECT_EQ(result.skipped, 2);
}

}  // namespace
}  // namespace evenkeel
