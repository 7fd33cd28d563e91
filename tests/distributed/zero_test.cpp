// Training with the optimizer's state cut over the data-parallel ranks has the bits of training without.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/data/byte_dataset.h"
#include "model/method.h"
#include "tests/support/devices.h"
#include "tests/support/run_files.h"
#include "tests/support/sharded_models.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::grid_shapes;
using testing::GridShape;
using testing::part_of;
using testing::random_batch;
using testing::same_bits;
using testing::world;

ProcessGrid grid_of(const GridShape& shape, std::int64_t zero_stage) {
    return ProcessGrid(
        world(),
        {.tensor_parallel = shape.tensor, .data_parallel = shape.data, .zero_stage = zero_stage});
}

// All ways in which this world has data-parallel ranks.
std::vector<GridShape> cut_shapes() {
    const std::int64_t size = world().size();
    std::vector<GridShape> shapes = {{1, size}};
    if (size == 4) shapes.push_back({2, 2});
    return shapes;
}

// Eight query heads on two key heads, so that the ranks of 2 x 2 share none and those of more do.
ModelConfig test_model(ComputeType type) {
    ModelConfig config = testing::tiny_model();
    config.attention.num_heads = 8;
    config.type = type;
    return config;
}

// What 20 steps see: the first five train gains alone, in the tenth a weight's gradient is not finite, and the norm is
// clipped from the first step on.
struct Curve {
    std::vector<double> losses, norms;
};

Curve train_twenty(LanguageModel& model) {
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    const std::int64_t ranks = model.data_parallel_size();
    Curve curve;
    for (int step = 0; step < 20; ++step) {
        std::vector<Batch> batches;
        for (int i = 0; i < 2; ++i) {
            batches.push_back(part_of(
                random_batch(ranks, 17, 32, static_cast<std::uint64_t>(2 * step + i)), model));
        }
        const UpdateScope scope = step < 5 ? UpdateScope::kFirstPhase : UpdateScope::kAll;
        compute_gradients(model, batches, numbers, scope);
        if (step == 10) {
            numbers.data<double>()[kSquaredNormIndex] = std::numeric_limits<double>::infinity();
        }
        adamw_step(model.buckets(), {}, 1e-2, 0.5, numbers, step + 1, scope);
        model.finish_update();
        curve.losses.push_back(numbers.data<double>()[kLossIndex]);
        curve.norms.push_back(numbers.data<double>()[kSquaredNormIndex]);
    }
    return curve;
}

// Values everywhere; master and moments of what a rank holds.
void expect_same_state(LanguageModel& got, LanguageModel& want) {
    ASSERT_EQ(got.parameters().size(), want.parameters().size());
    for (std::size_t i = 0; i < got.parameters().size(); ++i) {
        const Parameter &a = *got.parameters()[i], &b = *want.parameters()[i];
        EXPECT_TRUE(same_bits(a.value, b.value)) << a.name << " (value)";
        const FlatRange held = a.held();
        for (Tensor Parameter::*member :
             {&Parameter::master, &Parameter::exp_avg, &Parameter::exp_avg_sq}) {
            const Tensor whole = (b.*member).view({(b.*member).numel()});
            EXPECT_TRUE(
                same_bits((a.*member).view({held.size()}), whole.slice(0, held.begin, held.end)))
                << a.name << " (" << held.begin << " to " << held.end << ")";
        }
    }
}

std::vector<std::pair<std::string, ModelConfig>> variants() {
    std::vector<std::pair<std::string, ModelConfig>> all;
    const auto add = [&](const char* name, ComputeType type = ComputeType::kBf16) -> ModelConfig& {
        all.emplace_back(name, test_model(type));
        return all.back().second;
    };
    add("fp32", ComputeType::kFp32);
    add("bf16");
    ModelConfig& shared = add("shared gains, tied embeddings, biases");
    shared.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
    shared.tied_embeddings = shared.attention.qkv_bias = shared.attention.output_bias = true;
    ModelConfig& held = add("gains that come in and are held", ComputeType::kFp32);
    held.attention.qk_norm.gain_bound = 20.0;
    held.attention.qk_norm.gain_pull = 0.1;
    held.attention.qk_norm.anneal_steps = 10;
    ModelConfig& clip = add("qk_clip");
    apply_method("qk_clip", clip);
    clip.attention.qk_clip_threshold = 1.0;
    clip.attention.qkv_bias = true;
    apply_method("sigma_reparam", add("sigma_reparam"));
    apply_method("ngpt", add("ngpt"));
    return all;
}

TEST(ZeroTest, TwentyStepsHaveTheBitsOfThoseWithoutCuts) {
    for (const auto& [name, config] : variants()) {
        for (const GridShape& shape : cut_shapes()) {
            const bool plain = name == "fp32" || name == "bf16";
            if (!plain && shape.data != cut_shapes().back().data) continue;  // takes its time
            const ProcessGrid whole_grid = grid_of(shape, 0), grid = grid_of(shape, 1);
            SCOPED_TRACE(name + ", " + testing::name_of(grid));
            LanguageModel want(whole_grid, config, 1), got(grid, config, 1);
            ASSERT_EQ(got.buckets().is_cut(), shape.data > 1);
            const Curve a = train_twenty(want), b = train_twenty(got);
            EXPECT_EQ(a.losses, b.losses);
            EXPECT_EQ(a.norms, b.norms);
            EXPECT_NE(a.losses.front(), a.losses.back());
            expect_same_state(got, want);
        }
    }
}

// What goes over the data-parallel group in a step: with cuts a reduce-scatter and an all-gather of each bucket in
// place of an all-reduce, and the chunks' sums of squares.
TEST(ZeroTest, SendsNoMoreThanWithoutCuts) {
    for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16}) {
        const GridShape shape = cut_shapes().front();
        const ModelConfig config = test_model(type);
        CommunicationCounts counts[2];
        std::int64_t buckets = 0, elements = 0, padding = 0, values = 0, chunks = 0;
        for (const std::int64_t stage : {0, 1}) {
            const ProcessGrid grid = grid_of(shape, stage);
            LanguageModel model(grid, config, 1);
            grid.data().counts() = {};
            const Batch batch = part_of(random_batch(shape.data, 17, 32, 1), model);
            const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
            compute_gradients(model, {&batch, 1}, numbers);
            adamw_step(model.buckets(), {}, 1e-3, 1.0, numbers, 1);
            model.finish_update();
            counts[stage] = grid.data().counts();
            for (const ParameterBucket& bucket : model.buckets().list()) {
                if (stage == 0) elements += bucket.grad.numel();
                if (stage == 0) ++buckets;
                if (stage == 1) padding += bucket.grad.numel();
                if (stage == 1) values += static_cast<std::int64_t>(bucket.value.bytes());
            }
            chunks = model.buckets().num_chunks();
        }
        if (shape.data == 1) {
            EXPECT_EQ(counts[0].bytes, counts[1].bytes);
            continue;
        }
        padding -= elements;
        EXPECT_LE(padding, buckets * (ParameterBucket::kAlignment * shape.data + shape.data));
        EXPECT_EQ(counts[0].all_reduces, buckets + 2) << "the number of targets, and the loss";
        EXPECT_EQ(counts[0].bytes, 4 * elements + 16);
        EXPECT_EQ(counts[1].reduce_scatters, buckets);
        EXPECT_EQ(counts[1].all_gathers, buckets);
        EXPECT_EQ(counts[1].all_reduces, 3)
            << "the number of targets, the loss and the norm's sums";
        EXPECT_EQ(counts[1].bytes, 4 * (elements + padding) + values + 8 * chunks + 16);
    }
}

TEST(ZeroTest, TheNormCountsTensorParallelReplicasOnce) {
    const GridShape shape = cut_shapes().back();
    const ModelConfig config = test_model(ComputeType::kFp32);
    const ProcessGrid grid = grid_of(shape, 1);
    LanguageModel model(grid, config, 1);
    const Batch batch = random_batch(shape.data, 17, 32, 3);
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    const Batch part = part_of(batch, model);
    compute_gradients(model, {&part, 1}, numbers);
    const testing::SoloGrid solo;
    LanguageModel one(solo.grid, config, 1);
    const Tensor want = Tensor::zeros({2}, DType::kFloat64);
    compute_gradients(one, {&batch, 1}, want);
    EXPECT_NEAR(numbers.data<double>()[kSquaredNormIndex] / want.data<double>()[kSquaredNormIndex],
                1.0, 1e-5);
}

class ZeroRunTest : public ::testing::Test {
  protected:
    ZeroRunTest() {
        if (world().rank() == 0) testing::write_text(files_.path("text"), 30000);
        world().barrier();
        model_ = test_model(ComputeType::kBf16);
        model_.vocab_size = 256;
        model_.init_std = model_.embedding_init_std = 0.05;
        trainer_.steps = 6;
        trainer_.batch_size = 8;
        trainer_.micro_batch_size = 1;
        trainer_.seq_len = 16;
        trainer_.eval_sequences = 4;
        trainer_.checkpoint_interval = 3;
        schedule_.warmup_steps = 2;
        schedule_.peak_lr = 3e-3;
    }
    TrainResult run(LanguageModel& model, const std::string& name) {
        const ByteDataset data({files_.path("text"), 0.1}, trainer_.seq_len);
        trainer_.run_dir = files_.path(name);
        return train(model, data, trainer_, schedule_, {}, "{}\n");
    }

    testing::SharedDirectory files_;
    ModelConfig model_;
    TrainerConfig trainer_;
    ScheduleConfig schedule_;
};

TEST_F(ZeroRunTest, ResumesWithOrWithoutCuts) {
    const GridShape shape = cut_shapes().back();
    const ProcessGrid whole_grid = grid_of(shape, 0), grid = grid_of(shape, 1);
    LanguageModel whole(whole_grid, model_, 1);
    const TrainResult want = run(whole, "whole");
    for (const std::int64_t first : {0, 1}) {
        SCOPED_TRACE(concat("zero_stage ", first, ", then ", 1 - first));
        trainer_.stop_at_step = 3;
        trainer_.resume = false;
        LanguageModel begun(first == 1 ? grid : whole_grid, model_, 1);
        run(begun, concat("begun", first));
        trainer_.stop_at_step = 0;
        trainer_.resume = true;
        LanguageModel resumed(first == 1 ? whole_grid : grid, model_, 2);
        const TrainResult rest = run(resumed, concat("begun", first));
        EXPECT_EQ(rest.steps, 3);
        EXPECT_EQ(rest.validation_loss, want.validation_loss);
        if (first == 0) expect_same_state(resumed, whole);
        for (std::size_t i = 0; i < whole.parameters().size(); ++i) {
            EXPECT_TRUE(same_bits(resumed.parameters()[i]->value, whole.parameters()[i]->value))
                << whole.parameters()[i]->name;
        }
    }
}

}  // namespace
}  // namespace evenkeel
