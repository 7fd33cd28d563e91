// The studies that train: points in processes of their own, kept, gone on with; a tiny rig, and the sweep's short form.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "launch/commands.h"
#include "launch/studies/points.h"
#include "tests/launch/command_line.h"

namespace evenkeel {
namespace {

using Json = nlohmann::json;
using testing::Outcome;
using testing::results_of;
using testing::run_evenkeel;

// A rig that trains in a fraction of a second.
class TrainedStudyTest : public ::testing::Test {
  protected:
    std::string settings(const std::string& more = "") const {
        return "--set text=" + tiny_.text +
               " --set steps=4 --set batch=2 --set seq_len=16 --set width=32 --set layers=1 --set "
               "heads=2"
               " --set kv_heads=1 --set eval_sequences=4 " +
               more;
    }
    testing::TinyRun tiny_;
};

TEST_F(TrainedStudyTest, LrSweepComputesEveryPointOnceAndGoesOnWhereItWas) {
    const std::string out = tiny_.directory.file("sweep");
    const std::string grid = "--set methods=plain,rms --set overhead_pairs=2 --set rates=";
    const Json first = results_of("lr-sweep", out, settings(grid + "1e-3"));
    const Json points = first.at("tables").at("methods");
    ASSERT_EQ(points.size(), 2u);
    EXPECT_EQ(points[1].at("method"), "rms");
    EXPECT_TRUE(points[1].at("overhead").is_number()) << points.dump();
    const std::string kept = read_file(out + "/points/rms_1e-3.json");

    const Outcome again =
        run_evenkeel("study lr-sweep --out " + out + " " + settings(grid + "1e-3,1e-2"));
    ASSERT_EQ(again.status, 0) << again.output;
    EXPECT_NE(again.output.find("3 of 5 points were there already"), std::string::npos)
        << again.output;
    EXPECT_NE(again.output.find("lr-sweep 2/2"), std::string::npos) << again.output;
    EXPECT_EQ(read_file(out + "/points/rms_1e-3.json"), kept);

    const Json results = Json::parse(read_file(out + "/results.json"));
    // LR sensitivity from the points themselves.
    for (const char* method : {"plain", "rms"}) {
        double sum = 0.0, best = INFINITY;
        for (const char* rate : {"1e-3", "1e-2"}) {
            const Json point =
                Json::parse(read_file(concat(out, "/points/", method, "_", rate, ".json")));
            const Json& numbers = point.at("numbers");
            const double loss = std::min(numbers.at("loss").get<double>(),
                                         numbers.at("initial_loss").get<double>());
            sum += loss / 2.0;
            best = std::min(best, loss);
            EXPECT_EQ(point.at("curves").at("loss").size(), 4u);
            EXPECT_EQ(point.at("curves").at("max_logit").size(), 4u);
        }
        for (const Json& row : results.at("tables").at("methods")) {
            if (row.at("method") == method) {
                EXPECT_NEAR(row.at("sensitivity").get<double>(), sum - best, 1e-9);
            }
        }
    }

    const Outcome other =
        run_evenkeel("study lr-sweep --out " + out + " " + settings(grid + "1e-3 --set seed=2"));
    EXPECT_EQ(other.status, 2) << other.output;
    EXPECT_NE(other.output.find("seed: got 1, want 2"), std::string::npos) << other.output;
}

TEST_F(TrainedStudyTest, LrSweepKeepsARunWhoseLossIsNoNumberAsDiverged) {
    const std::string out = tiny_.directory.file("sweep");
    const Json results =
        results_of("lr-sweep", out,
                   settings("--set methods=plain --set rates=1e-3,1e30 --set overhead_pairs=0"));
    const Json& loss = results.at("tables").at("loss");
    EXPECT_TRUE(loss[0].at("plain").is_number()) << loss.dump();
    EXPECT_EQ(loss[1].at("plain"), "nan") << loss.dump();
    EXPECT_TRUE(results.at("tables").at("methods")[0].at("sensitivity").is_number());
}

TEST_F(TrainedStudyTest, LrSweepShowsLogitsBeforeAndAfterASoftcap) {
    const Json tables =
        results_of("lr-sweep", tiny_.directory.file("sweep"),
                   settings("--set methods=plain,softcap --set rates=3e-1 --set overhead_pairs=0"))
            .at("tables");
    const Json &after = tables.at("max_logit")[0], &before = tables.at("max_logit_uncapped")[0];
    EXPECT_EQ(before.at("plain"), after.at("plain"));
    EXPECT_GT(before.at("softcap").get<double>(), after.at("softcap").get<double>());
    // The cap keeps the order, so the largest stays the largest.
    EXPECT_NEAR(after.at("softcap").get<double>(),
                50.0 * std::tanh(before.at("softcap").get<double>() / 50.0), 1e-3);
}

TEST_F(TrainedStudyTest, LrSweepRefusesWhatItCannotTrain) {
    const struct {
        const char* settings;
        const char* word;
    } cases[] = {{"--set methods=plain,nonsense", "nonsense"},
                 {"--set rates=0", "rates"},
                 {"--set text=/nowhere", "/nowhere"},
                 {"--set head_dim=33", "head_dim"},
                 {"--set stop=5", "stop"},
                 {"--point nothing_1", "nothing_1"}};
    for (const auto& [arguments, word] : cases) {
        const Outcome outcome =
            run_evenkeel("study lr-sweep --out " + tiny_.directory.file("sweep") + " " +
                         settings("--set methods=plain ") + arguments);
        EXPECT_EQ(outcome.status, 2) << arguments << ": " << outcome.output;
        EXPECT_NE(outcome.output.find(word), std::string::npos)
            << arguments << ": " << outcome.output;
    }
}

TEST_F(TrainedStudyTest, TransplantAndTemperatureTrainTheirRuns) {
    const Json kappas =
        results_of("transplant", tiny_.directory.file("transplant"), settings("--set kappas=1,100"))
            .at("tables")
            .at("kappas");
    ASSERT_EQ(kappas.size(), 2u);
    for (const Json& row : kappas) {
        // The largest logit is below its bound, and near it: a head of 32 channels has some aligned pair.
        const double bound = row.at("bound"), largest = row.at("max_logit");
        EXPECT_LE(largest, bound * (1.0 + 1e-5)) << row.dump();
        EXPECT_GT(largest, 0.2 * bound) << row.dump();
        EXPECT_NEAR(bound, row.at("kappa").get<double>() * std::sqrt(32.0), 1e-6 * bound);
    }
    // Of the same points: what is said depends on them, not on the order of the list.
    const auto finding = [&](const char* list) {
        return results_of("transplant", tiny_.directory.file("transplant"),
                          settings(std::string("--set kappas=") + list))
            .at("findings")
            .at(0)
            .get<std::string>();
    };
    const std::string reversed = finding("100,1");
    EXPECT_EQ(reversed, finding("1,100"));
    EXPECT_NE(reversed.find("with kappa 100 the loss is"), std::string::npos) << reversed;
    const double harm = kappas[1].at("against_first");
    EXPECT_EQ(reversed.starts_with("Large logits do harm"), harm > 0.001) << reversed << harm;
    EXPECT_NE(finding("1").find("nothing to compare"), std::string::npos) << finding("1");

    const std::string out = tiny_.directory.file("temperature");
    const Json runs =
        results_of(
            "temperature", out,
            settings(
                "--set methods=plain --set length=1 --set during=1 --set after=2 --set rate=1e-3"))
            .at("tables")
            .at("runs");
    ASSERT_EQ(runs.size(), 3u);
    const auto logits = [&](const char* when) {
        return Json::parse(read_file(out + "/points/plain_" + when + ".json"))
            .at("curves")
            .at("max_logit");
    };
    const Json never = logits("never"), during = logits("during"), after = logits("after");
    // The same up to the probe, ten times as large in it.
    EXPECT_EQ(during[0], never[0]);
    EXPECT_NEAR(during[1][1].get<double>(), 10.0 * never[1][1].get<double>(),
                1e-3 * std::abs(never[1][1].get<double>()));
    EXPECT_EQ(after[1], never[1]);
    EXPECT_NEAR(after[2][1].get<double>(), 10.0 * never[2][1].get<double>(),
                1e-3 * std::abs(never[2][1].get<double>()));
    EXPECT_LT(during[2][1].get<double>(), 5.0 * never[2][1].get<double>());
}

TEST(StudyPointsTest, AFailedPointIsRecordedAndTriedAgain) {
    const testing::TemporaryDirectory directory;
    StudyCommand command;
    command.name = "lr-sweep";
    command.out = directory.file("out");
    // In the place of the program: $4 is the directory, $6 the point.
    const std::string program = directory.write(
        "program",
        "#!/bin/sh\n"
        "if [ $6 = bad ] && [ ! -e $4/mended ]; then echo first; echo no such luck >&2; exit 3; "
        "fi\n"
        "[ \"$OMP_NUM_THREADS\" = 1 ] || exit 4\n"
        "echo \"{\\\"settings\\\":{\\\"a\\\":1},\\\"numbers\\\":{\\\"x\\\":2},\\\"curves\\\":{}}\" "
        "> $4/points/$6.json\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    study::PointPlan plan{{"good", "bad", "other"}, R"({"a":1})", 2, program};
    auto results = study::run_points(command, plan);
    EXPECT_EQ(results.at("good").number("x"), 2.0);
    EXPECT_EQ(results.at("other").number("x"), 2.0);
    EXPECT_EQ(results.at("bad").failure, "exit status 3: no such luck");
    EXPECT_TRUE(std::isnan(results.at("bad").number("x")));
    EXPECT_NE(read_file(command.out + "/points/bad.json").find("no such luck"), std::string::npos);
    directory.write("out/mended", "");
    results = study::run_points(command, plan);
    EXPECT_EQ(results.at("bad").failure, "");
    EXPECT_EQ(results.at("bad").number("x"), 2.0);
    plan.settings = R"({"a":2})";
    EXPECT_THROW(study::run_points(command, plan), Error);
}

TEST(StudyPointsTest, PointsOfAnotherTextAreRefusedWhereTheySayWhichItWas) {
    const testing::TemporaryDirectory directory;
    StudyCommand command;
    command.name = "lr-sweep";
    command.out = directory.file("out");
    std::filesystem::create_directories(command.out + "/points");
    const auto put = [&](const std::string& settings, const std::string& failure) {
        directory.write("out/points/one.json", "{\"settings\":" + settings + "," + failure +
                                                   "\"numbers\":{\"x\":2},\"curves\":{}}");
    };
    const std::string program = directory.write("program", "#!/bin/sh\nexit 3\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    const study::PointPlan plan{{"one"}, R"({"a":1,"text_fingerprint":"f"})", 1, program};
    for (const char* kept : {R"({"a":1})", R"({"a":1,"text_fingerprint":"f"})"}) {
        put(kept, "");
        EXPECT_EQ(study::run_points(command, plan).at("one").number("x"), 2.0) << kept;
    }
    put(R"({"a":1,"text_fingerprint":"g"})", "");
    EXPECT_THROW(study::run_points(command, plan), Error);
    put(R"({"a":1,"text_fingerprint":"g"})", R"("failure":"no text",)");
    EXPECT_EQ(study::run_points(command, plan).at("one").failure, "exit status 3") << "tried again";
}

TEST_F(TrainedStudyTest, EndsWithStatusOneWhenAPointFailed) {
    const std::string out = tiny_.directory.file("failed");
    const std::string sweep =
        "study lr-sweep --out " + out + " " +
        settings("--set methods=plain --set overhead_pairs=0 --set rates=1e-3");
    const std::string text = read_file(tiny_.text);
    std::ofstream(tiny_.text, std::ios::trunc).close();
    const Outcome failed = run_evenkeel(sweep);
    EXPECT_EQ(failed.status, 1) << failed.output;
    EXPECT_NE(failed.output.find("1 of 1 points failed"), std::string::npos) << failed.output;
    const Json results = Json::parse(read_file(out + "/results.json"));
    EXPECT_EQ(results.at("tables").at("failures").at(0).at("point"), "plain_1e-3");
    std::ofstream(tiny_.text) << text;
    const Outcome mended = run_evenkeel(sweep);
    EXPECT_EQ(mended.status, 0) << mended.output;
}

// The sweep in ten seconds: at a learning rate ten times too large plain attention's logits run away within the first
// steps of 300, normalised ones do not. The text is quickstart's.
TEST(StudyTest, LogitsRunAwayWithoutTheNormAndStayWithIt) {
    if (!std::filesystem::exists("/usr/share/games/fortunes"))
        GTEST_SKIP() << "needs the package fortunes";
    const testing::TemporaryDirectory directory;
    const std::string text = directory.file("fortunes.txt");
    ASSERT_EQ(testing::run_command(EVENKEEL_SOURCE_DIR "/launch/fortunes.sh " + text).status, 0);
    const Json tables =
        results_of("lr-sweep", directory.file("sweep"),
                   "--set methods=plain,rms --set rates=3e-2 --set stop=35 --set overhead_pairs=0"
                   " --set eval_sequences=16 --set text=" +
                       text)
            .at("tables");
    const Json logits = tables.at("max_logit")[0], entropy = tables.at("entropy")[0];
    EXPECT_GT(logits.at("plain").get<double>(), 300.0);
    EXPECT_LT(logits.at("rms").get<double>(), 30.0);
    EXPECT_LT(entropy.at("plain").get<double>(), 0.5);
    EXPECT_GT(entropy.at("rms").get<double>(), 1.0);
}

}  // namespace
}  // namespace evenkeel
