// Steps and data that a run leaves out: outliers, ranges of batches, and what lies behind a rewind.
#include <gtest/gtest.h>

#include <filesystem>

#include "framework/storage/checkpoint.h"
#include "tests/framework/training/trainer_runs.h"

namespace evenkeel {
namespace {

using testing::BigramTable;
using testing::same_bits;
using testing::TrainerTest;

class TrainerSkipTest : public TrainerTest {
  protected:
    TrainerSkipTest() {
        config_.batch_size = config_.micro_batch_size = 2;
        config_.log_interval = 1;
        schedule_.peak_lr = 0.001;  // the loss hardly falls
    }
    bool exists(const std::string& path) const {
        return std::filesystem::exists(files_.file(path));
    }
};

double scalar(const MetricRecord& record, const std::string& wanted) {
    for (const auto& [name, value] : record.scalars) {
        if (name == wanted) return value;
    }
    ADD_FAILURE() << "step " << record.step << " has no " << wanted;
    return NAN;
}

TEST_F(TrainerSkipTest, LeavesOutAStepWhoseLossOrGradientNormIsFarAboveTheLast) {
    config_.steps = 80;
    config_.skip_outliers_sigma = 6.0;
    for (const bool in_loss : {true, false}) {
        BigramTable model;
        const auto spike = [](int call) { return call == 70 || call == 71 ? 50.0 : 0.0; };
        (in_loss ? model.added_loss : model.added_gradient) = spike;
        const std::string name = in_loss ? "loss" : "gradient";
        const TrainResult result = run(model, name);
        EXPECT_EQ(result.skipped, 2);
        EXPECT_EQ(model.updates, 78);
        EXPECT_EQ(model.dropped, 2);
        EXPECT_EQ(model.located, 0);
        const auto records = read_metrics(files_.file(name) + "/metrics.jsonl");
        ASSERT_EQ(records.size(), 80u);
        EXPECT_EQ(scalar(records[68], "outliers"), 0.0);
        EXPECT_EQ(scalar(records[69], "outliers"), 1.0);
        EXPECT_EQ(scalar(records[79], "outliers"), 2.0);
        EXPECT_EQ(scalar(records[79], "skipped"), 2.0);
    }
}

TEST_F(TrainerSkipTest, ASkippedStepChangesNoBitOfWeightsAndMoments) {
    config_.skip_outliers_sigma = 6.0;
    config_.steps = 71;
    schedule_.warmup_steps = 0;
    schedule_.kind = ScheduleConfig::Kind::kConstant;
    BigramTable spiked, shorter;
    spiked.added_gradient = [](int call) { return call == 71 ? 50.0 : 0.0; };
    run(spiked, "spiked");
    config_.steps = 70;
    run(shorter, "shorter");
    const auto got = spiked.state(true), want = shorter.state(true);
    for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same_bits(got[i].second, want[i].second)) << want[i].first;
    }
}

TEST_F(TrainerSkipTest, TakesEveryStepWhenItIsOff) {
    config_.steps = 80;
    BigramTable model;
    model.added_loss = [](int call) { return call == 70 ? 50.0 : 0.0; };
    EXPECT_EQ(run(model, "run").skipped, 0);
    EXPECT_EQ(model.updates, 80);
}

TEST_F(TrainerSkipTest, ResumesWithTheWindowItHad) {
    config_.steps = 90;
    config_.skip_outliers_sigma = 3.0;
    const auto spikes = [](int call) { return call == 70 ? 1.0 : call >= 74 ? 0.01 * call : 0.0; };
    BigramTable straight, first, second;
    straight.added_loss = first.added_loss = spikes;
    const TrainResult want = run(straight, "straight");
    EXPECT_GT(want.skipped, 0);
    config_.stop_at_step = 72;
    run(first, "halves");
    config_.stop_at_step = 0;
    config_.resume = true;
    second.added_loss = [&](int call) { return spikes(call + 72); };
    const TrainResult got = run(second, "halves");
    EXPECT_EQ(got.skipped, want.skipped);
    EXPECT_TRUE(testing::same_files(got.checkpoint, want.checkpoint));
}

TEST_F(TrainerSkipTest, AFirstPhaseLeavesNoLimitsToTheNext) {
    config_.steps = 75;
    config_.first_phase_steps = 70;
    config_.skip_outliers_sigma = 6.0;
    BigramTable model;
    EXPECT_EQ(run(model, "run").skipped, 0) << "the norm of all gradients is larger";
}

TEST_F(TrainerSkipTest, TrainsOnEveryBatchButThoseThatAreLeftOut) {
    config_.steps = 10;
    BigramTable whole, parted;
    run(whole, "whole");
    config_.steps = 6;
    config_.skip_batches = "3-5,8";
    run(parted, "parted");
    ASSERT_EQ(parted.seen.size(), 6u);
    const std::size_t want[] = {1, 2, 6, 7, 9, 10};
    for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_TRUE(same_bits(parted.seen[i], whole.seen[want[i] - 1])) << "step " << i + 1;
    }
    const auto records = read_metrics(files_.file("parted") + "/metrics.jsonl");
    for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(scalar(records[i], "batch"), static_cast<double>(want[i]));
        EXPECT_EQ(records[i].step, static_cast<std::int64_t>(i + 1));
    }
    // The schedule counts steps, not batches.
    const double rate = learning_rate(schedule_, 3, config_.steps);
    EXPECT_EQ(scalar(records[3], "lr"), rate);
}

TEST_F(TrainerSkipTest, ResumesAmongLeftOutBatchesBitForBit) {
    config_.steps = 8;
    config_.skip_batches = "3-5,8";
    BigramTable straight;
    const TrainResult want = run(straight, "straight");
    for (const std::int64_t stop : {1, 2, 3, 5}) {
        const std::string name = concat("run", stop);
        BigramTable first, second;
        config_.resume = false;
        config_.stop_at_step = stop;
        run(first, name);
        config_.stop_at_step = 0;
        config_.resume = true;
        const TrainResult got = run(second, name);
        EXPECT_TRUE(testing::same_files(got.checkpoint, want.checkpoint)) << "stop at " << stop;
    }
}

TEST_F(TrainerSkipTest, RewindsAndPassesByTheBatchesOfASpike) {
    config_.steps = 12;
    config_.checkpoint_interval = 3;
    config_.checkpoint_keep = 0;
    BigramTable before, again, straight;
    run(before, "run");
    control_.rewind_to = 8;  // from step 6
    config_.skip_batches = "7-9";
    const TrainResult result = run(again, "run");
    EXPECT_EQ(result.steps, 6);
    ASSERT_EQ(again.seen.size(), 6u);
    EXPECT_TRUE(same_bits(again.seen[0], before.seen[9])) << "step 7 trains on batch 10";
    EXPECT_TRUE(exists("run/checkpoints/step_00000009.rewound"));
    EXPECT_TRUE(exists("run/checkpoints/step_00000012.rewound"));
    EXPECT_TRUE(exists("run/checkpoints/step_00000009"));
    EXPECT_EQ(read_metrics(files_.file("run") + "/metrics.rewound.jsonl").size(), 12u);
    EXPECT_EQ(read_metrics(files_.file("run") + "/metrics.jsonl").size(), 12u);

    // The same as a run that had left them out from the beginning.
    control_ = {};
    const TrainResult want = run(straight, "straight");
    EXPECT_TRUE(testing::same_files(result.checkpoint, want.checkpoint));
}

TEST_F(TrainerSkipTest, RewindsTwiceAndKeepsEverything) {
    config_.steps = 6;
    config_.checkpoint_interval = 3;
    BigramTable first, second, third;
    run(first, "run");
    control_.rewind_to = 3;
    run(second, "run");
    EXPECT_EQ(run(third, "run").steps, 3);
    EXPECT_TRUE(exists("run/checkpoints/step_00000006.rewound"));
    EXPECT_TRUE(exists("run/checkpoints/step_00000006.rewound.2"));
    EXPECT_TRUE(exists("run/metrics.rewound.2.jsonl"));
}

TEST_F(TrainerSkipTest, RenamesNothingWhereItCannotGoBack) {
    config_.steps = 9;
    config_.checkpoint_interval = 3;
    config_.checkpoint_keep = 0;
    BigramTable model, other;
    run(model, "run");
    const auto expect_all_there = [&] {
        for (const char* step : {"3", "6", "9"}) {
            EXPECT_TRUE(exists(concat("run/checkpoints/step_0000000", step))) << step;
        }
        EXPECT_TRUE(exists("run/checkpoints/latest"));
        EXPECT_FALSE(exists("run/metrics.rewound.jsonl"));
    };
    control_.rewind_to = 3;
    other.size = 17;
    EXPECT_EQ(failure(other, "run").code(), ErrorCode::kConfig);
    expect_all_there();
    std::filesystem::resize_file(files_.file("run/checkpoints/step_00000003/trainer.json"), 9);
    control_.rewind_to = 5;
    EXPECT_EQ(failure(model, "run").code(), ErrorCode::kIo);
    expect_all_there();
}

TEST_F(TrainerSkipTest, GoesBackBehindADamagedCheckpoint) {
    config_.steps = 9;
    config_.checkpoint_interval = 3;
    config_.checkpoint_keep = 0;
    BigramTable model, again;
    run(model, "run");
    std::filesystem::resize_file(files_.file("run/checkpoints/step_00000006/trainer.json"), 9);
    control_.rewind_to = 7;
    EXPECT_EQ(run(again, "run").steps, 6);
    EXPECT_TRUE(exists("run/checkpoints/step_00000006.rewound"));
}

TEST_F(TrainerSkipTest, RefusesToRewindBeforeTheFirstCheckpoint) {
    config_.steps = 6;
    config_.checkpoint_interval = 3;
    BigramTable model;
    run(model, "run");
    control_.rewind_to = 2;
    const Error error = failure(model, "run");
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("--rewind: got 2, want a step"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("begins with that of step 3"), std::string::npos)
        << error.what();
    EXPECT_TRUE(exists("run/checkpoints/step_00000006"));
}

}  // namespace
}  // namespace evenkeel
