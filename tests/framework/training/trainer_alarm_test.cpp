// What alarms do to a run.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/framework/training/trainer_runs.h"

namespace evenkeel {
namespace {

using testing::BigramTable;

using TrainerAlarmTest = testing::TrainerTest;

AlarmRule rule_of(const char* name, AlarmAction action, double threshold, std::int64_t records) {
    AlarmRule rule;
    rule.name = name;
    rule.metric = "max_logit";
    rule.setting = {action, threshold, records};
    return rule;
}

TEST_F(TrainerAlarmTest, AnAlarmIsRecordedAndWritesACheckpoint) {
    BigramTable model;
    config_.steps = 6;
    alarms_ = {rule_of("low", AlarmAction::kWarn, 2.0, 2),
               rule_of("high", AlarmAction::kWarn, 3.0, 1),
               rule_of("saves", AlarmAction::kCheckpoint, 2.0, 4)};
    ::testing::internal::CaptureStderr();
    run(model, "run");
    const std::string log = ::testing::internal::GetCapturedStderr();
    const std::string line =
        "alarm low: max_logit of row 0 column 1 is 2.5, above 2, since step 1 (1 of 2)";
    EXPECT_NE(log.find(line), std::string::npos) << log;
    EXPECT_EQ(log.find(line), log.rfind(line)) << "once";
    const auto records = read_metrics(files_.file("run") + "/metrics.jsonl");
    ASSERT_EQ(records.size(), 6u);
    ASSERT_EQ(records[1].alarms.size(), 1u);
    const AlarmEvent& event = records[1].alarms[0];
    EXPECT_EQ(event.alarm, "low");
    EXPECT_EQ(event.text, line);
    EXPECT_EQ(event.column, 1);
    EXPECT_EQ(event.value, 2.5);
    EXPECT_EQ(event.since, 1);
    EXPECT_EQ(event.action, AlarmAction::kWarn);
    ASSERT_EQ(records[3].alarms.size(), 1u);
    EXPECT_EQ(records[3].alarms[0].action, AlarmAction::kCheckpoint);
    EXPECT_EQ(records.back().scalars.back(),
              (std::pair<std::string, double>{"alarms_active", 2.0}));
    EXPECT_TRUE(std::filesystem::exists(files_.file("run") + "/checkpoints/step_00000004"));
    EXPECT_FALSE(std::filesystem::exists(files_.file("run") + "/checkpoints/step_00000003"));
}

TEST_F(TrainerAlarmTest, AnAlarmEndsARunAfterACheckpointThatCanBeResumed) {
    alarms_ = {rule_of("ends", AlarmAction::kEnd, 2.0, 3)};
    BigramTable model;
    const Error error = failure(model, "run");
    EXPECT_EQ(error.exit_status(), 5);
    EXPECT_NE(std::string(error.what()).find("step 3: alarm ends: max_logit"), std::string::npos)
        << error.what();
    EXPECT_TRUE(std::filesystem::exists(files_.file("run") + "/checkpoints/step_00000003"));

    // What is known is not told again, until it was over.
    BigramTable again;
    config_.resume = true;
    const TrainResult result = run(again, "run");
    EXPECT_EQ(result.steps, 17);
}

TEST_F(TrainerAlarmTest, ARunThatResumesCountsOnFromTheRecordsBefore) {
    alarms_ = {rule_of("ends", AlarmAction::kEnd, 2.0, 5)};
    config_.stop_at_step = 3;
    BigramTable model, again;
    run(model, "run");
    config_.stop_at_step = 0;
    config_.resume = true;
    const Error error = failure(again, "run");
    EXPECT_NE(std::string(error.what()).find("since step 1"), std::string::npos) << error.what();
    EXPECT_TRUE(std::filesystem::exists(files_.file("run") + "/checkpoints/step_00000005"));
}

TEST_F(TrainerAlarmTest, RanksThatAreNotTheMainOneEndTheRunToo) {
    alarms_ = {rule_of("ends", AlarmAction::kEnd, 2.0, 3)};
    BigramTable model(1, 2, false);
    config_.micro_batch_size = 4;
    EXPECT_THROW(run(model, "run"), AlarmError);
}

}  // namespace
}  // namespace evenkeel
