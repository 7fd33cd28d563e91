// Runs that start from other runs' weights, and their first phase.
#include <gtest/gtest.h>

#include <filesystem>

#include "framework/storage/checkpoint.h"
#include "framework/training/run_state.h"
#include "tests/framework/training/trainer_runs.h"

namespace evenkeel {
namespace {

using testing::BigramTable;
using testing::same_bits;

class TrainerStartTest : public testing::TrainerTest {
  protected:
    // The state of a run of 20 steps in "source".
    void train_source() {
        run(source_, "source");
        config_.init_from = files_.file("source");
    }
    RunState state_of(const TrainResult& result) const {
        const std::string file = result.checkpoint + "/trainer.json";
        return parse_run_state(read_file(file), file);
    }
    BigramTable source_;
};

// The first step by hand: moments that go on, corrected for all updates that they have seen.
TEST_F(TrainerStartTest, TakesMomentsAndTheirNumberOfUpdatesAlong) {
    train_source();
    schedule_.warmup_steps = 0;
    config_.steps = 1;
    BigramTable model;
    ::testing::internal::CaptureStderr();
    const TrainResult result = run(model, "next");
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("with moments of 20 updates"), std::string::npos) << log;
    EXPECT_EQ(state_of(result).step, 1);
    EXPECT_EQ(state_of(result).updates_before, 20);

    const double norm = model.gradient_norm(), scale = std::min(1.0, config_.clip_norm / norm);
    const AdamWConfig c;
    const auto g = testing::to_doubles(model.table().grad);
    const auto w = testing::to_doubles(source_.table().master);
    const auto m = testing::to_doubles(source_.table().exp_avg);
    const auto v = testing::to_doubles(source_.table().exp_avg_sq);
    const double lr = learning_rate(schedule_, 0, 1);
    std::vector<double> want(w.size());
    for (std::size_t i = 0; i < w.size(); ++i) {
        const double x = g[i] * scale;
        const double mean = (c.beta1 * m[i] + (1 - c.beta1) * x) / (1 - std::pow(c.beta1, 21));
        const double square =
            (c.beta2 * v[i] + (1 - c.beta2) * x * x) / (1 - std::pow(c.beta2, 21));
        want[i] = w[i] - lr * (mean / (std::sqrt(square) + c.epsilon) + c.weight_decay * w[i]);
    }
    EXPECT_TRUE(testing::near(model.table().master, want, 1e-5, 1e-6));
}

TEST_F(TrainerStartTest, TheDataGoesOnWhereTheRunBeforeEnded) {
    BigramTable longer;
    config_.steps = 21;
    run(longer, "longer");
    config_.steps = 20;
    train_source();
    config_.steps = 1;
    BigramTable model;
    ::testing::internal::CaptureStderr();
    const TrainResult result = run(model, "next");
    const std::string log = ::testing::internal::GetCapturedStderr();
    const std::string want =
        concat("goes on after the ", 20 * config_.batch_size, " sequences that were trained on");
    EXPECT_NE(log.find(want), std::string::npos) << want << "\n" << log;
    EXPECT_TRUE(same_bits(model.seen[0], longer.seen[20]));
    EXPECT_FALSE(same_bits(model.seen[0], longer.seen[0]));
    EXPECT_EQ(state_of(result).sample, 21 * config_.batch_size);
    // Records have the batch, since it is not the step's number.
    double batch = 0.0;
    const auto records = read_metrics(files_.file("next") + "/metrics.jsonl");
    for (const auto& [name, value] : records.front().scalars) {
        if (name == "batch") batch = value;
    }
    EXPECT_EQ(batch, 21.0);
}

TEST_F(TrainerStartTest, TheDataBeginsAnewWhereItIsAnotherOrder) {
    train_source();
    config_.steps = 1;
    ++config_.seed;
    BigramTable model;
    ::testing::internal::CaptureStderr();
    const TrainResult result = run(model, "next");
    const std::string log = ::testing::internal::GetCapturedStderr();
    const std::string want = concat("the data begins with its first sequence: trainer.seed is ",
                                    config_.seed, ", and was ", config_.seed - 1);
    EXPECT_NE(log.find(want), std::string::npos) << want << "\n" << log;
    EXPECT_EQ(state_of(result).sample, config_.batch_size);
}

TEST_F(TrainerStartTest, WithoutMomentsTheyBeginAnew) {
    train_source();
    config_.steps = 1;
    config_.init_moments = false;
    BigramTable model;
    const TrainResult result = run(model, "next");
    EXPECT_EQ(state_of(result).updates_before, 0);
    std::vector<double> want = testing::to_doubles(model.table().grad);
    const double scale = std::min(1.0, config_.clip_norm / model.gradient_norm());
    for (double& value : want) value *= 0.1 * scale;
    EXPECT_TRUE(testing::near(model.table().exp_avg, want, 1e-5, 1e-12));
}

TEST_F(TrainerStartTest, TakesACheckpointOfARunAsWellAsItsNewest) {
    config_.checkpoint_interval = 10;
    train_source();
    config_.steps = 1;
    BigramTable newest, last, earlier;
    run(newest, "newest");
    config_.init_from = files_.file("source") + "/checkpoints/step_00000020";
    run(last, "last");
    EXPECT_TRUE(same_bits(last.table().master, newest.table().master));
    config_.init_from = files_.file("source") + "/checkpoints/step_00000010";
    EXPECT_EQ(state_of(run(earlier, "earlier")).updates_before, 10);
}

TEST_F(TrainerStartTest, StartingFromARunThatStartedFromAnotherCountsAllUpdates) {
    train_source();
    config_.steps = 3;
    BigramTable second, third;
    run(second, "second");
    config_.init_from = files_.file("second");
    EXPECT_EQ(state_of(run(third, "third")).updates_before, 23);
}

TEST_F(TrainerStartTest, ResumesBitForBit) {
    train_source();
    BigramTable straight, first_half, second_half;
    config_.first_phase_steps = 7;
    for (const std::int64_t stop : {5, 12}) {  // within the first phase, and after it
        std::filesystem::remove_all(files_.file("halves"));
        config_.resume = false;
        const TrainResult want = run(straight, concat("straight", stop));
        config_.stop_at_step = stop;
        run(first_half, "halves");
        config_.stop_at_step = 0;
        config_.resume = true;  // which wins over init_from
        const TrainResult got = run(second_half, "halves");
        EXPECT_EQ(got.steps, 20 - stop);
        EXPECT_TRUE(testing::same_files(got.checkpoint, want.checkpoint));
    }
}

TEST_F(TrainerStartTest, ResumingSaysWhatIsNotAsItWas) {
    BigramTable first, second, third;
    config_.stop_at_step = 5;
    run(first, "run");
    config_.resume = true;
    config_.init_from = files_.file("nowhere");
    config_.stop_at_step = 7;
    ::testing::internal::CaptureStderr();
    run(second, "run");
    std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("trainer.init_from was for the start"), std::string::npos) << said;
    EXPECT_EQ(said.find("skip_batches"), std::string::npos) << said;
    config_.skip_batches = "100";
    config_.batch_size *= 2;
    config_.stop_at_step = 9;
    ::testing::internal::CaptureStderr();
    run(third, "run");
    said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("trainer.skip_batches counts batches of"), std::string::npos) << said;
}

TEST_F(TrainerStartTest, NamesAPlaceWithoutACheckpoint) {
    BigramTable model;
    config_.init_from = files_.file("nowhere");
    EXPECT_EQ(failure(model, "next").code(), ErrorCode::kIo);
    std::filesystem::create_directories(files_.file("nowhere") + "/checkpoints");
    const Error error = failure(model, "next");
    EXPECT_NE(std::string(error.what()).find("holds no complete checkpoint"), std::string::npos)
        << error.what();
}

TEST_F(TrainerStartTest, AFirstPhaseTrainsItsParametersAlone) {
    train_source();
    config_.steps = 5;
    config_.first_phase_steps = 5;
    BigramTable model;
    run(model, "next");
    EXPECT_TRUE(same_bits(model.table().master, source_.table().master));
    EXPECT_TRUE(same_bits(model.table().exp_avg, source_.table().exp_avg));
    EXPECT_TRUE(same_bits(model.table().exp_avg_sq, source_.table().exp_avg_sq));
    EXPECT_FALSE(same_bits(model.bias().master, source_.bias().master));
    config_.steps = 6;
    BigramTable longer;
    run(longer, "longer");
    EXPECT_FALSE(same_bits(longer.table().master, source_.table().master)) << "after the phase";
}

// The table's gradients are larger than the bias's, and would clip it.
TEST_F(TrainerStartTest, AFirstPhaseClipsByTheGradientsThatItUses) {
    config_.steps = 1;
    config_.first_phase_steps = 1;
    config_.clip_norm = 0.0;
    BigramTable free, clipped;
    run(free, "free");
    double square = 0.0;
    for (const double g : testing::to_doubles(free.bias().grad)) square += g * g;
    EXPECT_NEAR(free.gradient_norm(), std::sqrt(square), 1e-12);
    config_.clip_norm = std::sqrt(square) / 4.0;
    run(clipped, "clipped");
    std::vector<double> want = testing::to_doubles(free.bias().exp_avg);
    for (double& value : want) value /= 4.0;
    EXPECT_TRUE(testing::near(clipped.bias().exp_avg, want, 1e-5, 1e-12));
}

TEST(RunState, ChangesAreToldAsBeforeAndNow) {
    EXPECT_EQ(json_changes(R"({"steps":90,"a":{"b":1}})", R"({"steps":95,"a":{"b":1},"c":2})"),
              "steps: 90 before, 95 now; c: nothing before, 2 now");
    EXPECT_EQ(json_changes("{}", "{}"), "");
}

TEST_F(TrainerStartTest, RefusesAFirstPhaseOfNothing) {
    BigramTable model;
    model.bias().first_phase = false;
    config_.first_phase_steps = 3;
    const Error error = failure(model, "next");
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("trainer.first_phase_steps: got 3, want 0"),
              std::string::npos)
        << error.what();
}

}  // namespace
}  // namespace evenkeel
