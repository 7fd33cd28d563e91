#include "launch/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "launch/report_comparison.h"
#include "launch/report_heads.h"
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

AlarmEvent raised(const char* metric, std::int64_t row, std::int64_t column) {
    AlarmEvent event;
    event.alarm = event.metric = metric;
    event.row = row, event.column = column;
    event.since = 4;
    event.text = concat("alarm ", metric, ": <out of bounds>");
    return event;
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
        const auto now = static_cast<float>(step);
        record.tables = {{"max_logit", 2, 4, {1, 2, 3, 4, 5, 6, 7, 8.0f * now}},
                         {"logit_bound", 2, 4, {9, 9, 9, 9, 9, 9, 9, 9.0f * now}},
                         {"entropy", 2, 4, {1, 2, 3, 4, 3, 2, 1, 0}},
                         {"entropy_share", 2, 4, {0.5f, 1, 1, 1, 0.1f, 0.2f, NAN, 0}},
                         {"q_gain_rms", 2, 4, {1, 1, 1, 1, 1, 1, 1, 0.3f * now}},
                         {"q_gain_max", 2, 4, {1, 1, 1, 1, 1, 1, 1, 2}},
                         {"k_gain_rms", 2, 2, {1, 1, 1, 0.3f * now}},
                         {"q_rms", 2, 4, {1, 2, 3, 4, 5, 6, 7, 8}},
                         {"k_rms_min", 2, 2, {1, 2, 3, 4}}};
        if (step == 5)
            record.alarms = {raised("logit_bound", 1, 3), raised("entropy_share", 1, -1)};
        if (step == 7) {
            record.alarms = {raised("logit_bound", 1, 3)};
            record.alarms[0].raised = false;
        }
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

TEST(ReportTest, AHeatMapEndsWithTheLastStep) {
    std::vector<MetricRecord> records(3);
    for (int i = 0; i < 3; ++i) {
        records[i].step = 10 * (i + 1);
        records[i].tables = {{"x", 1, 1, {1.0f}}};
    }
    const auto domain = [](const HeatMap& map) {
        return nlohmann::json::parse(heat_map_spec(map)).at("scales").at(0).at("domain");
    };
    EXPECT_EQ(domain(table_map(records, "x", false)), (nlohmann::json{10.0, 30.0}));
    const auto cells =
        nlohmann::json::parse(heat_map_spec(table_map(records, "x", false))).at("data").at(0);
    EXPECT_EQ(cells.at("values").at(1).at("x"), 15.0);
    EXPECT_EQ(cells.at("values").at(1).at("e"), 25.0);
    EXPECT_EQ(cells.at("values").at(1).at("t"), 20.0);
    EXPECT_EQ(domain(table_map(records, "x", false, 2)), (nlohmann::json{10.0, 30.0})) << "bins";
    records.resize(1);
    EXPECT_EQ(domain(table_map(records, "x", false)), (nlohmann::json{9.5, 10.5}));
}

// The first spec's horizontal axis.
nlohmann::json axis_of(const std::string& spec) {
    return nlohmann::json::parse(spec).at("axes").at(0);
}

TEST(ReportTest, TicksStandAtWholeSteps) {
    LinePlot plot;
    plot.series = {{"loss", "#000000", {{1, 2}, {2, 1}, {3, 1}}}};
    EXPECT_EQ(axis_of(line_plot_spec(plot)).at("tickMinStep"), 1);
    plot.x_title = "learning rate";
    EXPECT_FALSE(axis_of(line_plot_spec(plot)).contains("tickMinStep"));
}

TEST(ReportTest, BroadSeriesLieBelowTheOthers) {
    LinePlot plot;
    plot.series = {{"it's", "#000001", {{1, 2}, {2, 1}}},
                   {"other", "#000002", {{1, 2}, {2, 1}}, Series::Style::kBroad},
                   {"other's", "#000003", {{2, 1}}, Series::Style::kBroadPoints}};
    const auto marks = nlohmann::json::parse(line_plot_spec(plot)).at("marks");
    const auto data = [&](std::size_t i) { return marks.at(i).at("from").at("data"); };
    EXPECT_EQ(data(0), "series1");
    EXPECT_EQ(data(1), "series2");
    EXPECT_EQ(data(2), "series0");
    EXPECT_NE(marks.dump().find(R"(\"it's\": format)"), std::string::npos)
        << "a name with an apostrophe";
}

class DifferencesTest : public ::testing::Test {
  protected:
    RunDifferences found() const {
        return differences("runs/a", a_, summary_a_, "runs/b", b_, summary_b_);
    }
    RunConfig a_, b_;
    nlohmann::ordered_json summary_a_, summary_b_;
};

TEST_F(DifferencesTest, SettingsAreNamedWithBothValues) {
    a_.trainer.run_dir = "runs/a";
    b_.trainer.resume = true;
    EXPECT_TRUE(found().settings.empty()) << "of no consequence";
    EXPECT_EQ(text_of(found(), "runs/a", "runs/b"), "settings: the same\n");
    b_.trainer.batch_size = 4 * a_.trainer.batch_size;
    const RunDifferences one = found();
    ASSERT_EQ(one.settings.size(), 1u);
    EXPECT_EQ(one.settings[0].path, "trainer.batch_size");
    EXPECT_EQ(one.data, "");
    EXPECT_EQ(text_of(one, "runs/a", "runs/b"),
              concat("settings that differ, runs/a and runs/b:\n  trainer.batch_size  ",
                     a_.trainer.batch_size, "  ", b_.trainer.batch_size, "\n"));
    EXPECT_EQ(table_of(one, "runs/a", "runs/b").rows.size(), 1u);
    EXPECT_EQ(to_json(one).at("settings_that_differ").size(), 1u);
}

TEST_F(DifferencesTest, RanksCountWhereNoSettingNamesThem) {
    summary_a_ = {{"ranks", 2}};
    summary_b_ = {{"ranks", 4}};
    const RunDifferences one = found();
    ASSERT_EQ(one.settings.size(), 1u);
    EXPECT_EQ(one.settings[0].path, "ranks");
    EXPECT_EQ(one.settings[0].other, "4");
    summary_b_ = {{"ranks", 2}};
    EXPECT_TRUE(found().settings.empty());
}

TEST_F(DifferencesTest, OtherDataIsToldUnlessItIsTheSameTextElsewhere) {
    a_.data.path = "a.txt";
    b_.data.path = "b.txt";
    EXPECT_NE(found().data, "");
    EXPECT_EQ(to_json(found()).at("same_data"), false);
    summary_a_ = {{"train_bytes", 90},
                  {"validation_bytes", 10},
                  {"unigram_entropy", 3.25},
                  {"bigram_entropy", 2.5}};
    summary_b_ = summary_a_;
    EXPECT_EQ(found().data, "") << "moved";
    b_.data.path = "a.txt";
    summary_b_["train_bytes"] = 91;
    EXPECT_NE(found().data.find("although it has one name"), std::string::npos) << found().data;
}

TEST_F(DifferencesTest, LossesOfOtherUnitsAreRefused) {
    a_.data.path = "a.txt";
    b_.data.path = "b.bin";
    try {
        found();
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        EXPECT_NE(std::string(error.what())
                      .find("losses of runs/a are nats per byte, those of runs/b nats per token"),
                  std::string::npos)
            << error.what();
    }
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

// A narrow page scrolls a table sideways and does not break "verdict" in two.
TEST_F(ReportPageTest, WordsInTablesStayWhole) {
    const std::string page = read_file(write_report({run_, "", ""}));
    int rules = 0;
    for (std::size_t at = 0; (at = page.find("td.words", at)) != std::string::npos; ++at) {
        const std::string rule = page.substr(at, page.find('}', at) - at);
        ++rules;
        EXPECT_EQ(rule.find("anywhere"), std::string::npos) << rule;
        EXPECT_EQ(rule.find("break-all"), std::string::npos) << rule;
    }
    EXPECT_GE(rules, 1);
}

// What a browser of that width makes of the page with all boxes opened: "drawn=17 ...", and its messages.
testing::Outcome browse(const testing::TemporaryDirectory& directory,
                        const std::string& page,
                        int width) {
    // In a frame, because windows have a least width.
    const std::string frame = directory.file("frame.html");
    write_file_atomically(frame, concat("<body><iframe src=\"file://", page, "#all\" width=", width,
                                        " height=900 style=\"border: 0\"></iframe><script>", R"(
        setTimeout(() => {
            const window = document.querySelector("iframe").contentWindow;
            const count = what => window.document.querySelectorAll(what).length;
            const state = name => name + "=" + count("figure[data-state=" + name + "]") + " ";
            document.body.textContent = "found " + state("drawn") + state("error") +
                state("waiting") + state("drawing") + "svg=" + count(".plot svg") + " canvas=" +
                count(".plot canvas") + " width=" + window.innerWidth + " of " +
                window.document.documentElement.scrollWidth + ".";
        }, 6000))",
                                        "</script></body>"));
    return testing::run_command(
        concat("HOME=", directory.file("home"),
               " chromium --headless --no-sandbox --disable-gpu --virtual-time-budget=12000"
               " --allow-file-access-from-files --enable-logging=stderr"
               " --window-size=1300,1000 --dump-dom file://",
               frame));
}

TEST_F(ReportPageTest, DrawsEveryPlotInABrowserOfAnyWidth) {
    if (testing::run_command("command -v chromium").status != 0) {
        GTEST_SKIP() << "needs chromium: apt-get install chromium";
    }
    const std::string other = directory_.file("other");
    write_run(other, 4);
    const std::string page = write_report({run_, other, ""});
    for (const int width : {1200, 400}) {
        SCOPED_TRACE(width);
        const testing::Outcome browser = browse(directory_, page, width);
        ASSERT_EQ(browser.status, 0) << browser.output;
        EXPECT_EQ(count(browser.output, ":CONSOLE"), 0u) << browser.output.substr(0, 4000);
        // Loss, its excess over the other run's, learning rate, gradient norm, speed and a line plot for each
        // of four groups as vectors; nine tables as pixels.
        const std::string want = concat(
            "found drawn=18 error=0 waiting=0 drawing=0 svg=9 canvas=9 width=", width, " of ");
        const std::size_t at = browser.output.find(want);
        ASSERT_NE(at, std::string::npos)
            << "want " << want << "\n"
            << browser.output.substr(
                   std::min(browser.output.find("found drawn"), browser.output.size()), 120);
        // Beside a bar for scrolling down: nothing to scroll sideways.
        EXPECT_LE(std::stoi(browser.output.substr(at + want.size())), width);
    }
}

TEST_F(ReportPageTest, SaysWhatEndedARun) {
    const auto end = [&](const char* by) {
        auto summary = nlohmann::json::parse(read_file(run_ + "/summary.json"));
        summary["ended_by"] = by;
        write_file_atomically(run_ + "/summary.json", summary.dump());
        return read_file(write_report({run_, "", ""}));
    };
    EXPECT_NE(end("SIGTERM").find(" · ended by SIGTERM</div>"), std::string::npos);
    const std::string page = end("[train] step 8: alarm max_logit: it is high");
    const std::size_t at = page.find("The run was ended: step 8: alarm max_logit: it is high<");
    ASSERT_NE(at, std::string::npos);
    EXPECT_LT(at, page.find("step 5: alarm"));
}

TEST_F(ReportPageTest, NamesWhatComparedRunsDifferIn) {
    const std::string other = directory_.file("other");
    write_run(other, 4);
    write_file_atomically(other + "/config.json", R"({"trainer": {"seq_len": 512}})");
    const std::string page = read_file(write_report({run_, other, ""}));
    EXPECT_NE(page.find("<tr><td>trainer.seq_len</td>"), std::string::npos);
    EXPECT_NE(page.find("validation, " + other), std::string::npos);
}

TEST_F(ReportPageTest, TellsOfAlarmsAboveAllElse) {
    const std::string page = read_file(write_report({run_, "", ""}));
    const std::size_t over =
        page.find("step 5: alarm logit_bound: &lt;out of bounds&gt;; over at step 7");
    const std::size_t open = page.find("step 5: alarm entropy_share: &lt;out of bounds&gt;</div>");
    EXPECT_NE(over, std::string::npos);
    EXPECT_NE(open, std::string::npos);
    EXPECT_LT(open, page.find("<figure"));
}

TEST(ReportHeadsTest, AlarmsLastUntilTheyAreOver) {
    std::vector<MetricRecord> records(4);
    for (int i = 0; i < 4; ++i) records[i].step = 10 * (i + 1);
    records[0].alarms = {raised("x", 2, 3)};
    records[1].alarms = {raised("x", 2, 3), raised("y", -1, -1)};
    records[1].alarms[0].raised = false;
    const auto of_x = alarm_marks(records, {"x"});
    ASSERT_EQ(of_x.size(), 1u);
    EXPECT_EQ(of_x[0].from, 10.0) << "where it was raised, as the list says";
    EXPECT_TRUE(of_x[0].text.starts_with("step 10: ")) << of_x[0].text;
    EXPECT_TRUE(alarm_notices(records)[0].text.starts_with("step 10: "));
    EXPECT_EQ(of_x[0].to, 20.0);
    const auto all = alarm_marks(records);
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[1].to, 40.0) << "not over: to the last record";
    EXPECT_TRUE(alarm_notices(records)[1].open);
    EXPECT_FALSE(alarm_notices(records)[0].open);
}

TEST(ReportHeadsTest, AlarmsOfOneNameAndTwoMetricsAreTwo) {
    std::vector<MetricRecord> records(4);
    for (int i = 0; i < 4; ++i) records[i].step = 10 * (i + 1);
    records[0].alarms = {raised("q_gain_max", 0, 1), raised("k_gain_max", 1, 2)};
    records[1].alarms = {raised("q_gain_max", 0, 1)};
    records[1].alarms[0].raised = false;
    for (MetricRecord& record : records) {
        for (AlarmEvent& event : record.alarms) event.alarm = "gain_drift";
    }
    const auto marks = alarm_marks(records);
    ASSERT_EQ(marks.size(), 2u);
    EXPECT_EQ(marks[0].to, 20.0) << "q's, which is over";
    EXPECT_EQ(marks[1].to, 40.0) << "k's, which is not";
    const auto notices = alarm_notices(records);
    ASSERT_EQ(notices.size(), 2u);
    EXPECT_FALSE(notices[0].open);
    EXPECT_TRUE(notices[1].open);
    EXPECT_EQ(notices[1].text.find("over at"), std::string::npos) << notices[1].text;
}

TEST(ReportHeadsTest, ManyHeadsGetFewerColumns) {
    std::vector<MetricRecord> records(500);
    for (int i = 0; i < 500; ++i) {
        records[i].step = i + 1;
        records[i].tables = {{"x", 10, 50, std::vector<float>(500, 1.0f)}};
    }
    EXPECT_LE(table_map(records, "x", false).columns.size(), 24000u / 500u);
    EXPECT_EQ(table_map(records, "x", false, 120, 100).columns.size(), 24u);
}

TEST(ReportHeadsTest, ANanInABinStays) {
    std::vector<MetricRecord> records(4);
    for (int i = 0; i < 4; ++i) {
        records[i].step = i + 1;
        records[i].tables = {{"x", 1, 1, {i == 1 ? NAN : static_cast<float>(i)}}};
    }
    for (const bool lowest : {true, false}) {
        const HeatMap map = table_map(records, "x", lowest, 2);
        EXPECT_TRUE(std::isnan(map.columns[0][0]));
        EXPECT_EQ(map.columns[1][0], lowest ? 2.0f : 3.0f);
    }
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
