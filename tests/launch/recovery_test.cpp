// What report --compare says of a run that finds back to its control.
#include "launch/recovery.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "launch/report.h"
#include "tests/launch/command_line.h"

namespace evenkeel {
namespace {

const std::vector<Point> kControl = {{5, 1.3}, {10, 1.2}, {20, 1.1}, {40, 1.0}, {80, 0.9}};

std::vector<Point> above_control(const std::vector<double>& excess) {
    std::vector<Point> losses = kControl;
    for (std::size_t i = 0; i < losses.size(); ++i) losses[i].y += excess[i];
    return losses;
}

TEST(RecoveryTest, IsTheFirstOfThreeEvaluationsInARow) {
    const auto step = [](const std::vector<double>& excess) {
        return recovery_of(above_control(excess), kControl).step;
    };
    EXPECT_EQ(step({0.5, 0.2, 0.0099, 0.0, -0.1}), 20);
    EXPECT_EQ(step({0.5, 0.0, 0.0, 0.2, 0.0}), -1) << "two in a row, and one";
    EXPECT_EQ(step({0.0, 0.0, 0.0, 0.5, 0.5}), 5);
    EXPECT_EQ(step({0.5, 0.2, 0.0099, 0.0, NAN}), -1);
    EXPECT_EQ(step({0.02, 0.02, 0.02, 0.02, 0.02}), -1);
}

TEST(RecoveryTest, CountsNoEvaluationBeforeTheNormIsIn) {
    const auto from = [](double step) {
        return recovery_of(above_control({0.0, 0.0, 0.0, 0.0, 0.0}), kControl, step);
    };
    EXPECT_EQ(from(0).step, 5);
    EXPECT_EQ(from(20).step, 20);
    EXPECT_NE(summary_of(from(20), "c").find("recovered at step 20, counted from step 20"),
              std::string::npos)
        << summary_of(from(20), "c");
    EXPECT_EQ(from(40).step, -1);
    EXPECT_NE(summary_of(from(40), "c").find("too few evaluations (2, counted from step 40"),
              std::string::npos)
        << summary_of(from(40), "c");
    EXPECT_EQ(from(INFINITY).step, -1);
    EXPECT_NE(summary_of(from(INFINITY), "c").find("the norm has not come in within 80 steps"),
              std::string::npos)
        << summary_of(from(INFINITY), "c");
}

TEST(RecoveryTest, TakesTheStepAtWhichTheNormIsInFromTheRun) {
    const auto records = [](bool annealed, double steps) {
        std::vector<MetricRecord> all;
        for (const Point& p : kControl) {
            MetricRecord record;
            record.step = static_cast<std::int64_t>(p.x);
            record.scalars = {{"validation_loss", p.y}};
            if (annealed) {
                record.scalars.emplace_back("qk_norm_lambda", std::min(1.0, p.x / steps));
            }
            all.push_back(record);
        }
        return all;
    };
    EXPECT_EQ(recovery_of(records(false, 0), records(false, 0)).step, 5);
    EXPECT_EQ(recovery_of(records(true, 18), records(false, 0)).step, 20);
    EXPECT_EQ(recovery_of(records(true, 1000), records(false, 0)).step, -1);
}

TEST(RecoveryTest, AreaIsThatOfTrapezoids) {
    const Recovery recovery = recovery_of(above_control({0.4, 0.2, 0.0, -0.1, 0.0}), kControl);
    EXPECT_NEAR(recovery.area, 5 * 0.3 + 10 * 0.1 - 20 * 0.05 - 40 * 0.05, 1e-12);
    EXPECT_NEAR(recovery.largest(), 0.4, 1e-12);
    EXPECT_NEAR(recovery.last(), 0.0, 1e-12);
}

TEST(RecoveryTest, SaysWhetherThereIsAnythingToRecoverFrom) {
    const auto says = [](const std::vector<Point>& run, const std::string& what) {
        const std::string text = summary_of(recovery_of(run, kControl), "c");
        EXPECT_NE(text.find(what), std::string::npos) << text;
    };
    says({{5, 1.3}, {10, 1.3}}, "too few evaluations (2)");
    says(above_control({-0.1, 0.0, -0.1, 0.0, -0.1}),
         "at no evaluation worse, from the first at step 5");
    says(above_control({0.005, 0.0, -0.1, 0.5, 0.5}),
         "recovered by the first evaluation, at step 5");
}

TEST(RecoveryTest, ComparesOnlyWhereBothWereEvaluated) {
    const Recovery recovery =
        recovery_of(std::vector<Point>{{7, 2.0}, {10, 1.5}, {30, 2.0}}, kControl);
    ASSERT_EQ(recovery.excess.size(), 1u);
    EXPECT_EQ(recovery.excess[0].x, 10);
    const Recovery none = recovery_of(std::vector<Point>{}, kControl);
    EXPECT_EQ(text_of(none, "c"), "");
    EXPECT_TRUE(std::isnan(none.largest()));
}

// Runs with nothing but losses.
void write_run(const std::string& directory, const std::vector<Point>& losses) {
    std::filesystem::create_directories(directory);
    std::string lines;
    for (const Point& p : losses) {
        MetricRecord record;
        record.step = static_cast<std::int64_t>(p.x);
        record.scalars = {{"loss", 1.0},
                          {"lr", 1e-3},
                          {"grad_norm", 1.0},
                          {"tokens_per_second", 1.0},
                          {"validation_loss", p.y}};
        lines += to_json_line(record) + "\n";
    }
    write_file_atomically(directory + "/metrics.jsonl", lines);
    write_file_atomically(directory + "/config.json", "{}");
}

TEST(RecoveryTest, OfARunThatWasNotTrainedNamesTheOneThatWas) {
    const testing::TemporaryDirectory directory;
    const std::string run = directory.file("run");
    std::filesystem::create_directories(run);
    const testing::Outcome alone = testing::run_evenkeel("report " + run);
    EXPECT_EQ(alone.status, 1) << alone.output;
    EXPECT_NE(alone.output.find("has made no step"), std::string::npos) << alone.output;
    write_run(run + "/continued", kControl);
    for (const std::string& arguments : {run, run + "/continued --compare " + run}) {
        const testing::Outcome outcome = testing::run_evenkeel("report " + arguments);
        EXPECT_EQ(outcome.status, 1) << outcome.output;
        EXPECT_NE(outcome.output.find("want " + run + "/continued"), std::string::npos)
            << outcome.output;
        EXPECT_EQ(outcome.output.find("report  "), std::string::npos) << outcome.output;
    }
}

TEST(RecoveryTest, ReportPrintsAndDrawsIt) {
    if (find_vega().empty()) GTEST_SKIP() << kVegaMissing;
    const testing::TemporaryDirectory directory;
    const std::string run = directory.file("run"), control = directory.file("control");
    write_run(run, above_control({0.5, 0.2, 0.0099, 0.0, -0.1}));
    write_run(control, kControl);
    const testing::Outcome outcome =
        testing::run_evenkeel("report " + run + " --compare " + control);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("recovered at step 20"), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("step 10  +0.2000"), std::string::npos) << outcome.output;
    const testing::Outcome json = testing::run_command(
        concat(EVENKEEL_PROGRAM, " report ", run, " --json --compare ", control, " 2>/dev/null"));
    ASSERT_EQ(json.status, 0) << json.output;
    const auto parsed = nlohmann::json::parse(json.output);
    EXPECT_EQ(parsed.at("recovery_step"), 20);
    EXPECT_EQ(parsed.at("evaluations").size(), kControl.size());
    EXPECT_NEAR(parsed.at("largest_excess").get<double>(), 0.5, 1e-6);
    const std::string page = read_file(run + "/report.html");
    EXPECT_NE(page.find("recovered at step 20"), std::string::npos);
    EXPECT_NE(page.find("Excess over"), std::string::npos);
}

}  // namespace
}  // namespace evenkeel
