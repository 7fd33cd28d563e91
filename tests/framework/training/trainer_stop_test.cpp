// Runs that are asked to end, or to write a checkpoint, at every place where they look.
#include <gtest/gtest.h>

#include <filesystem>

#include "framework/storage/checkpoint.h"
#include "tests/framework/training/trainer_runs.h"

namespace evenkeel {
namespace {

using testing::BigramTable;
using testing::TrainerTest;

class TrainerStopTest : public TrainerTest {
  protected:
    // From the n-th time that the run asks, counting from 1, `signal` has come.
    void signal_at(int n, int signal = SIGUSR1) {
        asked_ = 0;
        control_.stop = [this, n, signal] { return StopRequest{++asked_ >= n ? signal : 0}; };
    }
    bool is_checkpoint(const std::string& run, std::int64_t step) const {
        return std::filesystem::exists(files_.file(run) + "/checkpoints/" +
                                       concat("step_0000000", step));
    }
    // That the run, gone on with, ends as one that nobody stopped.
    void expect_goes_on(const std::string& name, const TrainResult& stopped) {
        control_ = {};
        config_.resume = false;
        BigramTable straight, rest;
        const TrainResult want = run(straight, name + "_straight");
        config_.resume = true;
        const TrainResult got = run(rest, name);
        config_.resume = false;
        EXPECT_EQ(got.steps, config_.steps - stopped.steps);
        EXPECT_EQ(got.stopped.signal, 0);
        EXPECT_TRUE(testing::same_files(got.checkpoint, want.checkpoint)) << name;
    }
    // Step and value, in the order in which they were written.
    std::vector<std::pair<std::int64_t, double>> validation_losses(const std::string& run) const {
        std::vector<std::pair<std::int64_t, double>> losses;
        for (const MetricRecord& record : read_metrics(files_.file(run) + "/metrics.jsonl")) {
            for (const auto& [name, value] : record.scalars) {
                if (name == "validation_loss") losses.emplace_back(record.step, value);
            }
        }
        return losses;
    }
    int asked_ = 0;
};

TEST_F(TrainerStopTest, EndsAtEachStepWithACheckpointFromWhichItGoesOnBitForBit) {
    config_.steps = 5;
    for (int n = 2; n <= 5; ++n) {  // the first time is before the first step
        const std::string name = concat("run", n);
        signal_at(n);
        BigramTable model;
        const TrainResult result = run(model, name);
        EXPECT_EQ(result.steps, n - 1);
        EXPECT_EQ(result.stopped.signal, SIGUSR1);
        EXPECT_TRUE(is_checkpoint(name, n - 1));
        EXPECT_TRUE(model.evaluated.empty());
        expect_goes_on(name, result);
    }
}

TEST_F(TrainerStopTest, EndsBeforeTheFirstStepWithoutACheckpoint) {
    config_.steps = 3;
    signal_at(1, SIGTERM);
    BigramTable model;
    const TrainResult result = run(model, "run");
    EXPECT_EQ(result.steps, 0);
    EXPECT_STREQ(result.stopped.name(), "SIGTERM");
    EXPECT_EQ(result.checkpoint, "");
    EXPECT_TRUE(model.seen.empty());
    expect_goes_on("run", result);
}

TEST_F(TrainerStopTest, EndsAfterResumingWithTheCheckpointItHas) {
    config_.steps = 5;
    config_.stop_at_step = 2;
    BigramTable first, second;
    run(first, "run");
    config_.stop_at_step = 0;
    config_.resume = true;
    signal_at(1);
    const TrainResult result = run(second, "run");
    EXPECT_EQ(result.steps, 0);
    EXPECT_EQ(result.checkpoint, files_.file("run") + "/checkpoints/step_00000002");
    EXPECT_TRUE(second.seen.empty());
}

TEST_F(TrainerStopTest, DropsAnEvaluationBetweenItsMicroBatches) {
    config_.steps = 4;
    config_.eval_interval = 2;
    config_.micro_batch_size = 2;  // evaluations of 8 sequences: four times
    // Before the first step, after steps 1 and 2, before two micro-batches; the third is not begun.
    signal_at(6);
    BigramTable model;
    const TrainResult result = run(model, "run");
    EXPECT_EQ(model.evaluated.size(), 2u);
    EXPECT_EQ(result.steps, 2);
    EXPECT_EQ(result.stopped.signal, SIGUSR1);
    EXPECT_TRUE(is_checkpoint("run", 2));
    const auto records = read_metrics(files_.file("run") + "/metrics.jsonl");
    ASSERT_EQ(records.size(), 2u);
    for (const auto& [name, value] : records[1].scalars) EXPECT_NE(name, "validation_loss");
    expect_goes_on("run", result);
    // It is made up: the run that goes on has the evaluations of the one that nobody stopped.
    EXPECT_EQ(validation_losses("run"), validation_losses("run_straight"));
    EXPECT_EQ(validation_losses("run").size(), 2u);
}

TEST_F(TrainerStopTest, MakesUpAnEvaluationOnceAndOnlyWhereOneIsDue) {
    config_.steps = 6;
    config_.eval_interval = 2;
    config_.resume = true;
    signal_at(3);  // before the first step, after steps 1 and 2: the evaluation is not begun
    BigramTable first;
    run(first, "run");
    EXPECT_TRUE(first.evaluated.empty());
    // Stopped in the made-up one: it is made up by the next start.
    signal_at(2);
    BigramTable second;
    EXPECT_EQ(run(second, "run").steps, 0);
    EXPECT_TRUE(validation_losses("run").empty());
    control_ = {};
    config_.stop_at_step = 3;  // where an evaluation is made, too
    BigramTable third;
    run(third, "run");
    EXPECT_EQ(third.evaluated.size(), 2u);
    config_.stop_at_step = 5;
    BigramTable fourth;
    run(fourth, "run");
    EXPECT_EQ(fourth.evaluated.size(), 2u) << "steps 4 and 5; that of 3 is there";
    config_.stop_at_step = 0;
    BigramTable last;
    run(last, "run");
    const auto got = validation_losses("run");
    ASSERT_EQ(got.size(), 5u);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].first, static_cast<int>(i) + 2);
}

TEST_F(TrainerStopTest, EndsInTheLastEvaluationWithTheLastCheckpoint) {
    config_.steps = 2;
    signal_at(4);  // before the first step, after both, before the evaluation's first pass
    BigramTable model;
    const TrainResult result = run(model, "run");
    EXPECT_EQ(result.steps, 2);
    EXPECT_EQ(result.stopped.signal, SIGUSR1);
    EXPECT_TRUE(is_checkpoint("run", 2));
    EXPECT_TRUE(validation_losses("run").empty());
    expect_goes_on("run", result);
    EXPECT_EQ(validation_losses("run"), validation_losses("run_straight"));
}

TEST_F(TrainerStopTest, EndsInAFirstPhase) {
    config_.steps = 5;
    config_.first_phase_steps = 3;
    signal_at(3);
    BigramTable model;
    const TrainResult result = run(model, "run");
    EXPECT_EQ(result.steps, 2);
    expect_goes_on("run", result);
}

TEST_F(TrainerStopTest, WritesACheckpointWithoutEnding) {
    config_.steps = 5;
    asked_ = 0;
    control_.stop = [this] { return StopRequest{++asked_ == 3 ? SIGUSR2 : 0}; };
    BigramTable model, other;
    const TrainResult result = run(model, "run");
    EXPECT_EQ(result.steps, 5);
    EXPECT_EQ(result.stopped.signal, 0);
    EXPECT_TRUE(is_checkpoint("run", 2));
    EXPECT_FALSE(is_checkpoint("run", 3));
    control_ = {};
    EXPECT_TRUE(testing::same_files(result.checkpoint, run(other, "other").checkpoint));
}

TEST_F(TrainerStopTest, WritesACheckpointForASignalThatCameDuringAnEvaluation) {
    config_.steps = 4;
    config_.eval_interval = 2;
    asked_ = 0;
    control_.stop = [this] { return StopRequest{++asked_ == 4 ? SIGUSR2 : 0}; };
    BigramTable model;
    EXPECT_EQ(run(model, "run").steps, 4);
    EXPECT_EQ(model.evaluated.size(), 2u);
    EXPECT_TRUE(is_checkpoint("run", 2));
}

TEST_F(TrainerStopTest, ARankThatHasHeardNothingDoesWhatAnotherIsAskedFor) {
    config_.steps = 5;
    config_.micro_batch_size = 4;
    struct Deaf : BigramTable {
        using BigramTable::BigramTable;
        double max_over_ranks(double value) override {
            return std::max(value,
                            seen.size() >= asked_after ? StopRequest{SIGTERM}.number() : 0.0);
        }
        std::size_t asked_after = 0;  // micro-batches
    } model;
    model.asked_after = 2 * static_cast<std::size_t>(config_.accumulation(1));
    control_.stop = [] { return StopRequest{}; };
    const TrainResult result = run(model, "run");
    EXPECT_EQ(result.steps, 2);
    EXPECT_STREQ(result.stopped.name(), "SIGTERM");
}

TEST_F(TrainerStopTest, EndsWithoutACheckpointWhereRanksHaveDriftedApart) {
    config_.steps = 9;
    config_.checkpoint_interval = 4;
    config_.replica_check_interval = 3;
    BigramTable sound, drifting, unchecked;
    run(sound, "sound");
    EXPECT_EQ(sound.compared, 5);  // after 3, 4, 6, 8 and 9 steps
    drifting.drifts_at = 4;
    const Error error = failure(drifting, "drifting");
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_EQ(std::string(error.what()).find("[train] step 8: table differs; no checkpoint"), 0u)
        << error.what();
    EXPECT_TRUE(is_checkpoint("drifting", 4));
    EXPECT_FALSE(is_checkpoint("drifting", 8));
    config_.replica_check_interval = 0;
    run(unchecked, "unchecked");
    EXPECT_EQ(unchecked.compared, 0);
}

TEST_F(TrainerStopTest, RanksWithPartsOfDifferentLengthAskEquallyOften) {
    // 7 sequences on 2 ranks: 3 and 4, in micro-batches of one: 3 and 4 of them.
    const ByteDataset text = data();
    int asked[2] = {0, 0};
    for (int rank = 0; rank < 2; ++rank) {
        BigramTable part(rank, 2);
        evaluate_unless(part, text, 7, 1, [&] { return ++asked[rank] < 0; });
        EXPECT_EQ(part.evaluated.size(), rank == 0 ? 3u : 4u);
    }
    EXPECT_EQ(asked[0], 4);
    EXPECT_EQ(asked[1], 4);
}

}  // namespace
}  // namespace evenkeel
