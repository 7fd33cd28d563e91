#include "launch/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/checkpoint.h"
#include "launch/report_plots.h"
#include "tests/launch/command_line.h"

namespace evenkeel {
namespace {

MetricRecord loss_record(std::int64_t step, double loss) {
    MetricRecord record;
    record.step = step;
    record.scalars = {{"loss", loss}};
    return record;
}

std::size_t count(const std::string& text, const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size())
        ++n;
    return n;
}

// A run of `steps` steps with two layers of four heads, as train leaves it, without training.
void write_run(const std::string& directory, int steps) {
    std::filesystem::create_directories(directory);
    std::string lines;
    for (int step = 1; step <= steps; ++step) {
        MetricRecord record = loss_record(step, 5.0 / step);
        record.scalars.emplace_back("lr", 1e-3);
        record.scalars.emplace_back("grad_norm", 0.5);
        record.scalars.emplace_back("tokens_per_second", 1e4 + step);
        if (step % 4 == 0) record.scalars.emplace_back("validation_loss", 5.1 / step);
        record.tables = {
            {"max_logit", 2, 4, {1, 2, 3, 4, 5, 6, 7, 8.0f * static_cast<float>(step)}},
            {"entropy", 2, 4, {1, 2, 3, 4, 3, 2, 1, 0}}};
        lines += to_json_line(record) + "\n";
    }
    write_file_atomically(directory + "/metrics.jsonl", lines);
    write_file_atomically(directory + "/config.json", R"({"data": {"path": "<script>&"}})");
    write_file_atomically(directory + "/summary.json",
                          R"({"steps": 8, "parameters": 1234567, "ranks": 2,
        "threads_per_rank": 1, "tokens_per_second": 10000, "train_bytes": 1, "validation_bytes": 1,
        "validation_loss": 1.5, "unigram_entropy": 3.1, "bigram_entropy": 2.4,
        "sample": "a </script><b>bold</b> text"})");
}

TEST(ReportTest, ComparesCurvesOverTheirCommonSteps) {
    const std::vector<MetricRecord> a = {loss_record(1, 2.0), loss_record(2, 1.5),
                                         loss_record(3, 1.0)};
    const std::vector<MetricRecord> b = {loss_record(1, 2.0), loss_record(2, 1.2)};
    const CurveDifference difference = compare_losses(a, b);
    EXPECT_EQ(difference.steps, 2);
    EXPECT_EQ(difference.worst_step, 2);
    EXPECT_NEAR(difference.largest, 0.25, 1e-12);
}

TEST(ReportTest, ANanInACurveIsTheLargestDifference) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const CurveDifference difference =
        compare_losses({loss_record(1, nan), loss_record(2, 1.0)}, {loss_record(1, 1.0)});
    EXPECT_TRUE(std::isnan(difference.largest));
}

TEST(ReportTest, LongCurvesAreDrawnAsMeansOfBins) {
    std::vector<MetricRecord> records;
    for (int step = 1; step <= 1000; ++step) records.push_back(loss_record(step, step % 2));
    const std::vector<Point> points = scalar_points(records, "loss", 100);
    ASSERT_EQ(points.size(), 100u);
    EXPECT_NEAR(points[0].x, 5.5, 1e-9);
    EXPECT_NEAR(points[0].y, 0.5, 1e-9);
}

TEST(ReportTest, HeatMapKeepsTheExtremeOfABin) {
    std::vector<MetricRecord> records(10);
    for (int i = 0; i < 10; ++i) {
        records[i].step = i + 1;
        records[i].tables = {{"x", 1, 2, {static_cast<float>(i), static_cast<float>(-i)}}};
    }
    const HeatMap highest = table_map(records, "x", false, 2);
    ASSERT_EQ(highest.columns.size(), 2u);
    EXPECT_EQ(highest.columns[0], (std::vector<float>{4, 0}));
    EXPECT_EQ(table_map(records, "x", true, 2).columns[1], (std::vector<float>{5, -9}));
}

TEST(ReportTest, MissingRunIsNamed) {
    if (find_vega().empty()) GTEST_SKIP() << kVegaMissing;
    try {
        write_report({"/nowhere/run", "", ""});
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("/nowhere/run"), std::string::npos);
    }
}

class ReportPageTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (find_vega().empty()) GTEST_SKIP() << kVegaMissing;
        run_ = directory_.file("run");
        write_run(run_, 8);
    }
    testing::TemporaryDirectory directory_;
    std::string run_;
};

TEST_F(ReportPageTest, IsSelfContainedAndEscapesWhatItShows) {
    const std::string page = read_file(write_report({run_, "", ""}));
    EXPECT_EQ(page.find("<link"), std::string::npos);
    EXPECT_EQ(page.find("<script src"), std::string::npos);
    EXPECT_EQ(page.find("<b>bold"), std::string::npos);
    EXPECT_NE(page.find("&lt;b&gt;bold"), std::string::npos);
    EXPECT_EQ(page.find("<script>&"), std::string::npos);
    EXPECT_NE(page.find("1,234,567"), std::string::npos);
}

TEST_F(ReportPageTest, DrawsEveryPlotInABrowser) {
    if (testing::run_command("command -v chromium").status != 0) {
        GTEST_SKIP() << "needs chromium";
    }
    const std::string other = directory_.file("other");
    write_run(other, 4);
    const std::string page = write_report({run_, other, ""});
    const testing::Outcome browser = testing::run_command(
        "HOME=" + directory_.file("home") +
        " chromium --headless --no-sandbox --disable-gpu --virtual-time-budget=10000"
        " --enable-logging=stderr --dump-dom file://" +
        page);
    ASSERT_EQ(browser.status, 0) << browser.output;
    EXPECT_EQ(count(browser.output, ":CONSOLE"), 0u) << browser.output.substr(0, 4000);
    EXPECT_EQ(count(browser.output, "data-state=\"drawn\""), 8u);
    EXPECT_EQ(count(browser.output, "data-state=\"error\""), 0u);
    EXPECT_EQ(count(browser.output, "class=\"error\""), 0u);
    // Six line plots are drawn as vectors, two heat maps as pixels.
    EXPECT_EQ(count(browser.output, "<svg"), 6u);
    EXPECT_EQ(count(browser.output, "<canvas"), 2u);
}

TEST_F(ReportPageTest, SaysSoWhenNumbersWereNotRecorded) {
    std::string lines;
    for (int step = 1; step <= 3; ++step) lines += to_json_line(loss_record(step, 1.0)) + "\n";
    write_file_atomically(run_ + "/metrics.jsonl", lines);
    std::filesystem::remove(run_ + "/summary.json");
    const std::string page = read_file(write_report({run_, "", ""}));
    EXPECT_NE(page.find("Not recorded in this run."), std::string::npos);
}

TEST(ReportCommandTest, NamesThePackageWhenVegaIsMissing) {
    const testing::TemporaryDirectory directory;
    write_run(directory.file("run"), 2);
    const testing::Outcome outcome = testing::run_command(
        "EVENKEEL_VEGA_DIR=/nowhere " EVENKEEL_PROGRAM " report " + directory.file("run"));
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.output.find("libjs-vega"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace evenkeel
