// Every study through the program, with numbers that are known from elsewhere.
#include "launch/studies/study.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "launch/commands.h"
#include "launch/report.h"
#include "model/method.h"
#include "tests/launch/command_line.h"

namespace evenkeel {
namespace {

using Json = nlohmann::json;
using testing::Outcome;
using testing::results_of;
using testing::run_evenkeel;

// ---- drift -------------------------------------------------------------------------------------

// What the text prints, digit for digit, and ten digits of the same numbers.
struct DriftRow {
    double x;
    std::string max_logit, top, entropy, slope;
    double exact_max, exact_top, exact_entropy, exact_slope;
};
const DriftRow kPlainRows[] = {
    {1, "2.6", "0.4111", "2.332", "5.39e-02", 2.644235464, 0.4111234455, 2.3317849, 0.05389740658},
    {2, "10.6", "0.9957", "0.676", "2.14e-02", 10.57694186, 0.9956638199, 0.6763044361,
     0.02144599173},
    {4, "42.3", "1.0000", "0.148", "5.48e-03", 42.30776743, 1, 0.1484624702, 0.005483312952},
    {8, "169.2", "1.0000", "0.037", "1.36e-03", 169.2310697, 1, 0.03749521999, 0.001361644718},
    {16, "676.9", "1.0000", "0.001", "1.74e-05", 676.9242788, 1, 0.0009925573752, 1.742288762e-05}};
const DriftRow kNormalisedRow = {1,           "3.3",        "0.5237",   "2.127",      "5.10e-02",
                                 3.302434894, 0.5236659422, 2.12694335, 0.05097604199};
// Of the last block the text prints top and entropy only.
const DriftRow kGainRows[] = {{1, "", "0.0844", "2.765", "", NAN, 0.08438226349, 2.765205906, NAN},
                              {5, "", "0.2297", "2.592", "", NAN, 0.2296631814, 2.59219054, NAN},
                              {10, "3.3", "0.5237", "2.127", "5.10e-02", 3.302434894, 0.5236659422,
                               2.12694335, 0.05097604199},
                              {20, "", "0.9252", "1.182", "", NAN, 0.925160493, 1.182399008, NAN},
                              {50, "", "0.9999", "0.469", "", NAN, 0.999866828, 0.4691164546, NAN}};

std::string printed(double value, const char* pattern) {
    char text[32];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

// digits: relative difference from the ten digits that is allowed; half a unit of the last one is 5e-10.
// In fp32 a logit of 677 is a multiple of 6e-5.
void expect_row(const Json& got, const DriftRow& want, double digits, const std::string& where) {
    const struct {
        const char* key;
        const char* pattern;
        const std::string& text;
        double exact;
    } columns[] = {{"max_abs_logit", "%.1f", want.max_logit, want.exact_max},
                   {"top_weight", "%.4f", want.top, want.exact_top},
                   {"entropy", "%.3f", want.entropy, want.exact_entropy},
                   {"slope", "%.2e", want.slope, want.exact_slope}};
    for (const auto& column : columns) {
        if (column.text.empty()) continue;
        const double value = got.at(column.key);
        if (!std::isnan(column.exact)) {
            EXPECT_NEAR(value, column.exact, digits * column.exact) << where << ", " << column.key;
        }
        if (!column.text.empty()) {
            EXPECT_EQ(printed(value, column.pattern), column.text) << where << ", " << column.key;
        }
    }
}

// The rows of `table` as the fp32 kernels computed them.
std::vector<Json> kernel_rows(const Json& results, const std::string& table) {
    std::vector<Json> rows;
    for (const Json& row : results.at("tables").at("kernels")) {
        if (row.at("table") == table) rows.push_back(row);
    }
    return rows;
}

TEST(StudyTest, DriftPrintsTheTextsTablesDigitForDigit) {
    const testing::TemporaryDirectory directory;
    const Json results = results_of("drift", directory.file("drift"));
    const Json& tables = results.at("tables");
    for (const bool kernels : {false, true}) {
        const auto rows = [&](const char* table) {
            return kernels ? kernel_rows(results, table)
                           : tables.at(table).get<std::vector<Json>>();
        };
        const double digits = kernels ? 3e-4 : 5e-10;
        const std::string by = kernels ? " by the fp32 kernels" : "";
        const std::vector<Json> plain = rows("plain"), normalised = rows("normalised"),
                                gains = rows("gains");
        ASSERT_EQ(plain.size(), 5u);
        ASSERT_EQ(normalised.size(), 5u);
        ASSERT_EQ(gains.size(), 5u);
        for (std::size_t i = 0; i < 5; ++i) {
            expect_row(plain[i], kPlainRows[i], digits, concat("plain row ", i, by));
            expect_row(normalised[i], kNormalisedRow, digits, concat("normalised row ", i, by));
            expect_row(gains[i], kGainRows[i], digits, concat("gain row ", i, by));
        }
    }
}

TEST(StudyTest, DriftPrintsATable) {
    const testing::TemporaryDirectory directory;
    const Outcome outcome = run_evenkeel("study drift --out " + directory.file("drift"));
    EXPECT_NE(outcome.output.find(
                  "             8        169.2      1.0000    0.037            1.36e-03\n"),
              std::string::npos)
        << outcome.output;
}

// ---- half, quantize, order -----------------------------------------------------------------------

TEST(StudyTest, HalfFindsWhereFp16Overflows) {
    const testing::TemporaryDirectory directory;
    const Json tables = results_of("half", directory.file("half")).at("tables");
    const Json& first = tables.at("first_overflow");
    EXPECT_EQ(first[0].at("scale"), 28) << "sum of squares";
    EXPECT_EQ(first[1].at("scale"), 56) << "dot product";
    EXPECT_EQ(first[2].at("scale"), 158) << "scaled logit";
    bool saw_400 = false;
    for (const Json& row : tables.at("scales")) {
        const double scale = row.at("scale");
        EXPECT_EQ(row.at("normalised_finite"),
                  scale < first[3].at("scale").get<double>() ? "finite" : "not finite")
            << scale;
        EXPECT_EQ(row.at("scaled_fp32"), 0) << scale;
        if (scale <= 1000) {
            EXPECT_NEAR(row.at("normalised_max").get<double>(), 3.30243, 0.002) << scale;
        }
        if (scale != 400) continue;
        saw_400 = true;
        EXPECT_EQ(row.at("raw_fp16"), 242);
        EXPECT_EQ(row.at("scaled_fp16"), 169);
        EXPECT_NEAR(row.at("max_fp32").get<double>(), 423078, 1);
    }
    EXPECT_TRUE(saw_400);
}

TEST(StudyTest, QuantizeGainsFromTheNormOnlyWhereOneScaleServesManyRows) {
    const testing::TemporaryDirectory directory;
    const Json rows = results_of("quantize", directory.file("quantize"), "--set tokens=64")
                          .at("tables")
                          .at("errors");
    ASSERT_EQ(rows.size(), 10u);
    const auto value = [&](std::size_t row, const char* key) {
        return rows[row].at(key).get<double>();
    };
    // Rounding to a step is wrong by step / sqrt(12) in the mean; the step of a row of 64 normal numbers is some
    // 2.5 / 127.
    EXPECT_NEAR(value(0, "q_per_row"), 2.5 / 127.0 / std::sqrt(12.0), 1e-3);
    // Everything at once.
    EXPECT_GT(value(8, "q_per_tensor"), 5.0 * value(9, "q_per_tensor"));
    EXPECT_GT(value(8, "logits_per_tensor"), 5.0 * value(9, "logits_per_tensor"));
    EXPECT_NEAR(value(9, "q_per_row"), value(8, "q_per_row"), 0.2 * value(8, "q_per_row"));
    // The norm takes out what differs between heads and tokens altogether, and outlier channels not.
    EXPECT_NEAR(value(5, "q_per_tensor"), value(1, "q_per_tensor"), 1e-6);
    EXPECT_GT(value(7, "q_per_tensor"), 1.5 * value(1, "q_per_tensor"));
}

TEST(StudyTest, OrderMattersForGainsThatDifferWithinAPair) {
    const testing::TemporaryDirectory directory;
    const Json rows = results_of("order", directory.file("order")).at("tables").at("spread");
    ASSERT_EQ(rows.size(), 6u);
    for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_LT(rows[i].at("spread").get<double>(), 1e-12) << rows[i].dump();
        EXPECT_LT(rows[i].at("spread_fp32").get<double>(), 1e-5) << rows[i].dump();
    }
    EXPECT_GT(rows[5].at("spread").get<double>(), 0.1) << rows[5].dump();
    EXPECT_NEAR(rows[5].at("spread").get<double>(), rows[5].at("spread_fp32").get<double>(), 1e-4);
    // Without untied gains the two orders are one.
    for (const std::size_t i : {0u, 2u}) {
        EXPECT_NEAR(rows[i].at("logit").get<double>(), rows[i + 1].at("logit").get<double>(),
                    1e-12);
    }
}

// ---- dilution --------------------------------------------------------------------------------------

TEST(StudyTest, DilutionFollowsItsClosedForms) {
    const testing::TemporaryDirectory directory;
    const Json tables = results_of("dilution", directory.file("dilution"),
                                   "--set tokens=16,128,1024,4096 --set gains=10,20")
                            .at("tables");
    // Of research on 64 channels: g, keys, share.
    const std::map<std::pair<double, double>, double> known = {{{10, 16}, 0.9986},
                                                               {{10, 128}, 0.9876},
                                                               {{10, 1024}, 0.909},
                                                               {{10, 4096}, 0.713},
                                                               {{20, 4096}, 0.9998}};
    std::size_t seen = 0;
    for (const Json& row : tables.at("needle")) {
        const double measured = row.at("measured"), expected = row.at("expected");
        EXPECT_NEAR(measured, expected, 0.01) << row.dump();
        EXPECT_NEAR(row.at("with_sink").get<double>(), row.at("with_sink_expected").get<double>(),
                    0.01)
            << row.dump();
        EXPECT_LE(row.at("with_sink").get<double>(), measured + 1e-6) << row.dump();
        const auto want =
            known.find({row.at("gain").get<double>(), row.at("tokens").get<double>()});
        if (want == known.end()) continue;
        ++seen;
        EXPECT_NEAR(measured, want->second, 0.004) << row.dump();
    }
    EXPECT_EQ(seen, known.size());
    for (const Json& row : tables.at("sink_key")) {
        EXPECT_NEAR(row.at("at_zero").get<double>(), row.at("at_zero_expected").get<double>(), 1e-4)
            << row.dump();
        EXPECT_NEAR(row.at("at_minus_bound").get<double>(),
                    row.at("at_minus_bound_expected").get<double>(), 1e-4)
            << row.dump();
    }
}

// ---- docs/qk_norm.md ---------------------------------------------------------------------------------

TEST(MethodsDocumentTest, HasARowForEveryMethodAndTheHeadingThatWarningsPointTo) {
    const std::string document = read_file(EVENKEEL_SOURCE_DIR "/docs/qk_norm.md");
    const std::size_t table = document.find("## The methods"),
                      end = document.find("## What a norm gives up");
    ASSERT_LT(table, end);
    const std::string rows = document.substr(table, end - table);
    for (const Method* method : methods()) {
        EXPECT_NE(rows.find(concat("`", method->name, "`")), std::string::npos) << method->name;
    }
    EXPECT_NE(document.find("\n## Mistakes\n"), std::string::npos);
}

// ---- settings and sentences ----------------------------------------------------------------------

std::unique_ptr<study::Study> study_with(const std::string& name,
                                         const std::vector<std::string>& settings) {
    for (std::unique_ptr<study::Study>& study : study::make_studies()) {
        if (study->name() != name) continue;
        for (const std::string& assignment : settings) {
            apply_override([&](ConfigVisitor& v) { study->visit_fields(v); }, assignment);
        }
        return std::move(study);
    }
    throw_error(ErrorCode::kConfig, "test", "no study " + name);
}

TEST(StudyTest, SettingsThatHaveNoMeaningAreRefusedByName) {
    const auto refused = [](const char* name, std::vector<std::string> settings) {
        const std::string assignment = settings.back();
        settings.insert(settings.begin(), "text=" EVENKEEL_SOURCE_DIR "/README.md");
        const bool has_text = study_with(name, {})->has_points();
        if (!has_text) settings.erase(settings.begin());
        try {
            study_with(name, settings)->validate();
            ADD_FAILURE() << name << ": " << assignment << " passes";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
            const std::string key = assignment.substr(0, assignment.find('=')) + ": got ";
            EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
        }
    };
    for (const char* width : {"head_dim=0", "head_dim=-1", "head_dim=8", "head_dim=100"}) {
        for (const char* name : {"dilution", "quantize", "order"}) refused(name, {width});
    }
    refused("dilution", {"tokens=16.5"});
    refused("dilution", {"tokens=99999999999"});
    refused("dilution", {"sink=1e300"});
    refused("quantize", {"tokens=99999999999"});
    refused("quantize", {"heads=1000", "tokens=16384"});
    refused("quantize", {"head_spread=1e300"});
    refused("quantize", {"token_spread=-1"});
    refused("quantize", {"outlier_factor=1e300"});
    refused("quantize", {"outliers=65"});
    refused("order", {"gain_std=1e300"});
    refused("order", {"positions=99999999999"});
    refused("order", {"distance=9223372036854775807"});
    refused("half", {"scales=1,1e300"});
    refused("half", {"gain=1e300"});
    for (const char* name : {"lr-sweep", "temperature", "transplant", "retrofit"}) {
        refused(name, {"batch=99999999999"});
        refused(name, {"layers=-1"});
        refused(name, {"width=9223372036854775807"});
    }
    refused("lr-sweep", {"rates=1e300"});
    refused("temperature", {"during=9223372036854775807"});
    refused("temperature", {"length=0"});
    refused("transplant", {"kappas=1,1e300"});
    refused("retrofit", {"fine_steps=0"});
    refused("retrofit", {"hot_rate=1e300"});
    refused("retrofit", {"bound=0"});
}

TEST(StudyTest, NumbersThatAreNoneAreAnError) {
    study::Outcome outcome;
    outcome.tables = {
        {"a", "", {{"x", "x"}, {"y", "largest y"}}, {{1.0, 2.0}, {study::Cell(), 3.0}}}};
    EXPECT_NO_THROW(study::check_finite(outcome));
    outcome.tables[0].rows[1][1] = NAN;
    try {
        study::check_finite(outcome);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kNonFinite);
        EXPECT_NE(std::string(error.what()).find("a, row 2, largest y: got "), std::string::npos)
            << error.what();
    }
}

TEST(StudyTest, SentencesFollowFromTheNumbers) {
    const auto sentence = [](const char* name, const std::vector<std::string>& settings,
                             std::size_t i) {
        const std::unique_ptr<study::Study> study = study_with(name, settings);
        study->validate();
        return study->run({}).findings.at(i);
    };
    const auto says = [](const std::string& text, const char* words) {
        EXPECT_NE(text.find(words), std::string::npos) << text;
    };
    says(sentence("order", {"positions=8", "gain_std=0"}, 0), "no order depends");
    says(sentence("order", {"positions=8"}, 0), "depending on where they stand");
    says(sentence("half", {"scales=1,400"}, 1), "finite at scale 400, the largest here");
    says(sentence("half", {"scales=1,400,30000"}, 1), "no longer at 30000: the inputs themselves");
    says(sentence("half", {"scales=400", "gain=1e6"}, 1), "finite at no scale");
    const std::vector<std::string> small = {"tokens=64", "heads=2"};
    says(sentence("quantize", small, 2), "a row, not a channel");
    says(sentence("quantize", {"tokens=64", "heads=2", "outliers=0"}, 2), "without outliers.");
    says(sentence("dilution", {"tokens=16,1024", "gains=10"}, 1), "keeps it");
    says(sentence("dilution", {"tokens=16,1024", "gains=10"}, 2), "does not give it back");
}

// ---- the frame -----------------------------------------------------------------------------------

TEST(StudyTest, ResultsOfAnotherStudyAreNotReplaced) {
    const testing::TemporaryDirectory directory;
    const std::string out = directory.file("half"), half = "study half --set scales=1 --out " + out;
    ASSERT_EQ(run_evenkeel(half).status, 0);
    const std::string before = read_file(out + "/results.json");
    const Outcome outcome = run_evenkeel("study order --set positions=4 --out " + out);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("is of the study half; want another directory"),
              std::string::npos)
        << outcome.output;
    EXPECT_EQ(read_file(out + "/results.json"), before);
    EXPECT_EQ(run_evenkeel(half).status, 0) << "its own are";
}

TEST(StudyTest, JsonIsWhatTheFileHolds) {
    const testing::TemporaryDirectory directory;
    const std::string out = directory.file("half");
    const Outcome outcome =
        testing::run_command(std::string(EVENKEEL_PROGRAM) +
                             " study half --json --set scales=1,400 --out " + out + " 2>/dev/null");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(outcome.output, read_file(out + "/results.json"));
    const Json results = Json::parse(outcome.output);
    EXPECT_EQ(results.at("study"), "half");
    EXPECT_EQ(results.at("settings").at("scales"), "1,400");
    EXPECT_EQ(results.at("tables").at("scales").size(), 2u);
}

TEST(StudyTest, WrongUseIsRefusedInOneLine) {
    const struct {
        const char* arguments;
        const char* word;
    } cases[] = {{"study", "--help"},
                 {"study nonsense", "nonsense"},
                 {"study drift --set scale=1", "--set"},
                 {"study half --set scale=1", "scales"},
                 {"study half --set scales=1,two", "two"},
                 {"study half --set scales=-1", "scales"},
                 {"study dilution --set gains=0", "gains: got 0"},
                 {"study dilution --set bounds=-1", "bounds: got -1"},
                 {"study quantize --set outliers=1000", "outliers"}};
    for (const auto& [arguments, word] : cases) {
        const Outcome outcome = run_evenkeel(arguments);
        EXPECT_EQ(outcome.status, 2) << arguments << ": " << outcome.output;
        EXPECT_NE(outcome.output.find(word), std::string::npos)
            << arguments << ": " << outcome.output;
    }
}

TEST(StudyTest, EveryStudyHasHelpWithItsSettingsAndExamples) {
    const std::vector<StudyHelp> helps = study_helps();
    EXPECT_FALSE(helps.empty());
    for (const StudyHelp& help : helps) {
        const Outcome outcome = run_evenkeel("study " + help.name + " --help");
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        EXPECT_NE(outcome.output.find("Examples:"), std::string::npos) << outcome.output;
        EXPECT_NE(outcome.output.find(help.summary), std::string::npos) << outcome.output;
    }
}

TEST(StudyTest, ListsOfNumbersAreReadAndRefused) {
    EXPECT_EQ(study::numbers_of("x", "1,2e-3"), (std::vector<double>{1.0, 2e-3}));
    EXPECT_EQ(study::words_of("a,,b,"), (std::vector<std::string>{"a", "b"}));
    EXPECT_THROW(study::numbers_of("x", ""), Error);
    EXPECT_THROW(study::numbers_of("x", "1,nan"), Error);
}

// Linear and logarithmic axes, marked and unmarked lines, with tables and lists.
TEST(StudyTest, PagesAreDrawnInABrowser) {
    if (find_vega().empty()) GTEST_SKIP() << kVegaMissing;
    if (testing::run_command("command -v chromium").status != 0) GTEST_SKIP() << "needs chromium";
    const testing::TinyRun tiny;
    const struct {
        std::string arguments;
        int figures;
    } pages[] = {
        {"order", 1},
        {"lr-sweep --set methods=plain --set rates=1e-3,1e30 --set overhead_pairs=0 --set steps=2"
         " --set batch=2 --set seq_len=16 --set width=32 --set layers=1 --set heads=2"
         " --set kv_heads=1 --set eval_sequences=4 --set text=" +
             tiny.text,
         3}};
    for (const auto& [arguments, figures] : pages) {
        const std::string out = tiny.directory.file(arguments.substr(0, 4));
        ASSERT_EQ(run_evenkeel(concat("study ", arguments, " --out ", out)).status, 0) << arguments;
        const Outcome browser = testing::open_page(tiny.directory, out + "/report.html");
        ASSERT_EQ(browser.status, 0) << browser.output;
        EXPECT_EQ(testing::count_of(":CONSOLE", browser.output), 0)
            << arguments << ": " << browser.output.substr(0, 4000);
        EXPECT_EQ(testing::count_of("data-state=\"drawn\"", browser.output), figures) << arguments;
        EXPECT_EQ(testing::count_of("class=\"error\"", browser.output), 0) << arguments;
        EXPECT_EQ(testing::count_of("data-state=\"error\"", browser.output), 0) << arguments;
    }
}

}  // namespace
}  // namespace evenkeel
