// The program from outside: help, results as JSON, and one clear message with the right status for
// whatever is wrong with what it is given.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "framework/device.h"
#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "launch/report.h"
#include "tests/launch/command_line.h"

namespace evenkeel::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

TEST(ExitStatusTest, IsWrittenWhereTheVariableSays) {
    const TinyRun tiny;
    const std::string file = tiny.directory.file("status");
    const auto status_of = [&](const std::string& arguments) {
        std::filesystem::remove(file);
        ::setenv("EVENKEEL_STATUS_FILE", file.c_str(), 1);
        const Outcome outcome = run_evenkeel(arguments);
        ::unsetenv("EVENKEEL_STATUS_FILE");
        if (!fs::exists(file)) return std::to_string(outcome.status) + ", nothing written";
        const std::string line = read_file(file);
        return std::to_string(outcome.status) + ", " + line.substr(line.find(": ") + 2);
    };
    EXPECT_EQ(status_of("methods"), "0, nothing written");
    EXPECT_EQ(status_of("methods --no-such-option"), "2, exit status 2\n");
    EXPECT_EQ(status_of(tiny.train("--set trainer.steps=-1")), "2, exit status 2\n");
    EXPECT_EQ(status_of("inspect " + tiny.directory.file("nothing")), "1, exit status 1\n");
}

class CommandTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CommandTest, HelpShowsExamples) {
    const Outcome outcome = run_evenkeel(std::string(GetParam()) + " --help");
    EXPECT_EQ(outcome.status, 0);
    EXPECT_NE(outcome.output.find("Examples:"), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find(std::string("evenkeel ") + GetParam()), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All,
                         CommandTest,
                         ::testing::Values("train",
                                           "eval",
                                           "sample",
                                           "inspect",
                                           "import",
                                           "export",
                                           "report",
                                           "bench",
                                           "methods",
                                           "retrofit",
                                           "scale",
                                           "study"),
                         [](const auto& test) { return std::string(test.param); });

TEST(CliTest, BadUsageIsStatusTwo) {
    EXPECT_EQ(run_evenkeel("").status, 2);
    EXPECT_EQ(run_evenkeel("tarin").status, 2);
    EXPECT_EQ(run_evenkeel("train").status, 2);
    EXPECT_EQ(run_evenkeel("eval --nonsense x").status, 2);
    EXPECT_EQ(run_evenkeel("bench --only nonsense").status, 2);
}

TEST(CliTest, BenchRefusesADeviceItDoesNotKnowOrMeasure) {
    expect_refusal(run_evenkeel("bench --device gpu"), {2, {"--device", "gpu", "cuda"}});
    expect_refusal(run_evenkeel("bench --device cuda --only step"),
                   {2, {"--device", "--only step", "norm", "attention"}});
}

TEST(CliTest, BenchOnCudaSaysWhyThereIsNone) {
    const std::string why = why_no_cuda();
    if (why.empty()) GTEST_SKIP() << "there is a GPU";
    expect_refusal(run_evenkeel("bench --device cuda"), {1, {"--device cuda", why}});
    expect_refusal(run_evenkeel("bench --device cuda --only norm --json"), {1, {why}});
}

TEST(CliTest, MisspeltCommandIsNamed) {
    expect_refusal(run_evenkeel("tarin --config x.json"), {2, {"tarin"}});
    expect_refusal(run_evenkeel("tarin --help"), {2, {"tarin: no such command"}});
    expect_refusal(run_evenkeel("scale"), {2, {"a subcommand is required: plan, search"}});
}

TEST(CliTest, UnworkableNumbersAreRefusedInShort) {
    for (const char* option : {"--seed -1", "--seed 99999999999999999999", "--temperature nan",
                               "--temperature -1", "--tokens -1"}) {
        const Outcome outcome = run_evenkeel(std::string("sample nowhere ") + option);
        const std::string name = std::string(option).substr(0, std::string(option).find(' '));
        expect_refusal(outcome, {2, {name}});
        EXPECT_LT(outcome.output.size(), 200u) << outcome.output;
    }
}

TEST(CliTest, ResultThatCannotBeWrittenIsAFailure) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train()).status, 0);
    for (const std::string command : {"eval ", "sample ", "inspect "}) {
        expect_refusal(run_command(EVENKEEL_PROGRAM " " + command + tiny.run + " > /dev/full"),
                       {1, {"standard output"}});
    }
}

TEST(CliTest, RunWhoseLossIsNotANumberEndsWithItsReport) {
    const TinyRun tiny;
    const Outcome outcome =
        run_evenkeel(tiny.train("--set schedule.peak_lr=1e30 --set trainer.non_finite=skip"));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("the step is skipped"), std::string::npos) << outcome.output;
}

TEST(CliTest, AnAlarmCanEndARunThatCanThenBeResumed) {
    const TinyRun tiny;
    const std::string rule =
        "--set alarms.logit_bound.threshold=0.5 --set alarms.logit_bound.action=end";
    const Outcome ended = run_evenkeel(tiny.train(rule));
    expect_refusal(ended,
                   {5,
                    {"step 1: alarm logit_bound: logit_bound of layer 0 head 0 is",
                     "above 0.5, since step 1", "docs/telemetry.md", "stopped at step 1 of 4"}});
    // What ended it is in its report.
    EXPECT_TRUE(std::filesystem::exists(tiny.run + "/report.html") || find_vega().empty());
    const auto ended_by = [&] {
        return nlohmann::json::parse(read_file(tiny.run + "/summary.json")).value("ended_by", "");
    };
    EXPECT_NE(ended_by().find("alarm logit_bound"), std::string::npos) << ended_by();
    const Outcome resumed = run_evenkeel(tiny.train(rule + " --set trainer.resume=true"));
    EXPECT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_EQ(resumed.output.find("alarm logit_bound"), std::string::npos) << resumed.output;
    EXPECT_EQ(ended_by(), "");
    expect_refusal(run_evenkeel(tiny.train("--set alarms.entropy.records=0")),
                   {2, {"alarms.entropy.records: got 0"}});
}

TEST(CliTest, SettingsArePrintedWhenNothingSpeaksAgainstTheRun) {
    const TinyRun tiny;
    const Outcome first = run_evenkeel(tiny.train());
    EXPECT_EQ(count_of("cuda_graphs=", first.output), 1) << first.output;
    const Outcome refused = run_evenkeel(tiny.train());  // has checkpoints, and is not resumed
    expect_refusal(refused, {2, {"trainer.resume"}});
    EXPECT_EQ(count_of("cuda_graphs=", refused.output), 0) << refused.output;
}

TEST(CliTest, TheLargestLogitIsShownBeforeAndAfterASoftCap) {
    const TinyRun tiny;
    const Outcome outcome = run_evenkeel(tiny.train("--set model.method=softcap"));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find(" uncapped)"), std::string::npos) << outcome.output;
    EXPECT_NE(read_file(tiny.run + "/metrics.jsonl").find("\"max_logit_uncapped_max\""),
              std::string::npos);
}

TEST(CliTest, ResumingWithUnworkableSettingsLeavesTheRunAsItWas) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train()).status, 0);
    const std::string before = read_file(tiny.run + "/config.json");
    expect_refusal(run_evenkeel(tiny.train("--set trainer.resume=true --set schedule.peak_lr=-1")),
                   {2, {"schedule.peak_lr"}});
    EXPECT_EQ(read_file(tiny.run + "/config.json"), before);
}

TEST(CliTest, MethodsAreListedAsATableAndAsJson) {
    const Outcome table = run_evenkeel("methods");
    EXPECT_EQ(table.status, 0) << table.output;
    EXPECT_EQ(table.output.find("plain "), 0u) << table.output;
    EXPECT_NE(table.output.find("\nhenry "), std::string::npos) << table.output;
    const Outcome json = run_evenkeel("methods --json");
    const Json list = Json::parse(json.output);
    for (const Json& method : list) {
        if (method["name"] != "softcap") continue;
        EXPECT_EQ(method["settings"]["model.attention.softcap"], 50.0);
        EXPECT_EQ(method["settings"]["model.attention.qk_norm.kind"], "none");
        EXPECT_EQ(method["settings"].size(), 2u) << method;
        return;
    }
    ADD_FAILURE() << "no softcap in " << json.output;
}

TEST(CliTest, UnknownMethodListsTheKnownOnes) {
    const TinyRun tiny;
    expect_refusal(run_evenkeel(tiny.train("--set model.method=x")),
                   {2, {"model.method: got \"x\", want one of plain, rms"}});
}

TEST(CliTest, TriedMistakesAreRefusedWithTheReason) {
    const TinyRun tiny;
    expect_refusal(run_evenkeel(tiny.train("--set model.attention.qk_norm.normalize_v=true")),
                   {2, {"values are what attention returns", "docs/qk_norm.md#v-normalised"}});
}

TEST(CliTest, AllowedMistakesAreWarnedOfOnce) {
    const TinyRun tiny;
    const Outcome outcome =
        run_evenkeel(tiny.train("--set model.attention.qk_norm.eps=1e-9 --set trainer.steps=1"));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    const std::string text = "model.attention.qk_norm.eps: got 1e-09";
    const std::size_t first = outcome.output.find(text);
    ASSERT_NE(first, std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find(text, first + 1), std::string::npos) << outcome.output;
}

TEST(CliTest, MisspeltKeyNamesTheNearest) {
    const TinyRun tiny;
    expect_refusal(run_evenkeel(tiny.train("--set model.attention.num_head=4")),
                   {2, {"num_head", "num_heads"}});
    const std::string config = tiny.directory.write("bad.json", R"({"trainer": {"step": 5}})");
    expect_refusal(run_evenkeel("train --config " + config), {2, {"bad.json", "step", "steps"}});
}

TEST(CliTest, WrongTypeNamesTheKey) {
    const TinyRun tiny;
    expect_refusal(run_evenkeel(tiny.train("--set trainer.steps=many")),
                   {2, {"trainer.steps", "many"}});
}

TEST(CliTest, MissingConfigurationIsNamed) {
    expect_refusal(run_evenkeel("train --config /nowhere.json"), {2, {"/nowhere.json"}});
}

TEST(CliTest, UnworkableModelNamesTheKey) {
    const TinyRun tiny;
    expect_refusal(run_evenkeel(tiny.train("--set model.attention.num_kv_heads=3")),
                   {2, {"num_kv_heads"}});
    expect_refusal(run_evenkeel(tiny.train("--set model.attention.head_dim=31")),
                   {2, {"head_dim"}});
}

TEST(CliTest, UnusableTextNamesThePath) {
    const TinyRun tiny;
    const auto train_on = [&](const std::string& path) {
        return run_evenkeel(tiny.train("--set data.path=" + path));
    };
    expect_refusal(train_on(tiny.directory.file("missing.txt")), {2, {"data.path", "missing.txt"}});
    expect_refusal(train_on(tiny.directory.write("empty.txt", "")),
                   {2, {"data.path", "empty.txt"}});
    expect_refusal(train_on(tiny.directory.write("zeros.txt", std::string(9999, '\0'))),
                   {2, {"data.path", "zeros.txt"}});
    expect_refusal(train_on(tiny.directory.write("short.txt", "too short")),
                   {2, {"data.path", "short.txt"}});
    expect_refusal(train_on("/dev/zero"), {2, {"data.path", "/dev/zero"}});
    const std::string pipe = tiny.directory.file("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    expect_refusal(train_on(pipe), {2, {"data.path", pipe}});
    EXPECT_FALSE(fs::exists(tiny.run));
}

TEST(CliTest, UnreadableTextNamesThePath) {
    // Root reads everything, so that somebody else has to try.
    const std::string as_nobody =
        ::geteuid() == 0 ? "setpriv --reuid=65534 --regid=65534 --clear-groups " : "";
    const std::string program = as_nobody + EVENKEEL_PROGRAM " ";
    const Outcome probe = run_command(program + "--version");
    if (probe.status != 0) GTEST_SKIP() << "cannot run as another user: " << probe.output;
    const TinyRun tiny;
    fs::permissions(tiny.directory.path(), fs::perms::all);
    fs::permissions(tiny.text, fs::perms::none);
    expect_refusal(run_command(program + tiny.train()), {1, {"text.txt"}});
}

TEST(CliTest, WrongNumberOfRanksSaysHowManyToStart) {
    const TinyRun tiny;
    expect_refusal(run_evenkeel(tiny.train("--set parallel.tensor_parallel=2")),
                   {2, {"mpirun -np 2"}});
}

TEST(CliTest, TrainEvalInspectSampleAndReportWorkTogether) {
    const TinyRun tiny;
    const Outcome trained = run_evenkeel(tiny.train());
    ASSERT_EQ(trained.status, 0) << trained.output;
    for (const char* word :
         {"parameters", "validation loss", "unigram entropy", "bigram entropy", "sample"}) {
        EXPECT_NE(trained.output.find(word), std::string::npos) << trained.output;
    }

    const Outcome evaluated = run_evenkeel("eval " + tiny.run + " --json");
    ASSERT_EQ(evaluated.status, 0) << evaluated.output;
    const Json eval = Json::parse(evaluated.output);
    EXPECT_EQ(eval.at("step"), 4);
    const Json summary = Json::parse(read_file(tiny.run + "/summary.json"));
    EXPECT_NEAR(eval.at("validation_loss").get<double>(),
                summary.at("validation_loss").get<double>(), 1e-9);

    const Outcome inspected = run_evenkeel("inspect " + tiny.run + " --json");
    ASSERT_EQ(inspected.status, 0) << inspected.output;
    const Json files = Json::parse(inspected.output).at("files");
    std::int64_t model_elements = 0;
    for (const Json& file : files) {
        const std::string name = fs::path(file.at("path").get<std::string>()).filename();
        if (name == "model.safetensors") model_elements = file.at("elements");
        EXPECT_FALSE(file.at("tensors").empty());
    }
    EXPECT_EQ(model_elements, summary.at("parameters").get<std::int64_t>());
    EXPECT_EQ(run_evenkeel("inspect " + tiny.run).status, 0);

    const std::string sample = "sample " + tiny.run + " --prompt Even --tokens 20 --seed 3";
    const Outcome first = run_evenkeel(sample);
    ASSERT_EQ(first.status, 0) << first.output;
    EXPECT_EQ(first.output.rfind("Even", 0), 0u) << first.output;
    EXPECT_EQ(run_evenkeel(sample).output, first.output);
}

TEST(CliTest, RunIsNotOverwrittenButGoesOnWhenAsked) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train("--set trainer.stop_at_step=2")).status, 0);
    expect_refusal(run_evenkeel(tiny.train()), {2, {"trainer.run_dir", "trainer.resume"}});
    const Outcome resumed = run_evenkeel(tiny.train("--set trainer.resume=true"));
    EXPECT_EQ(resumed.status, 0) << resumed.output;
    const Json summary = Json::parse(read_file(tiny.run + "/summary.json"));
    EXPECT_EQ(summary.at("steps").get<int>(), 4) << "of the run, not of the last start";
    EXPECT_TRUE(fs::exists(tiny.checkpoint(4)));
}

TEST(CliTest, PlansMemoryWithoutRanksGpusOrText) {
    const Outcome outcome =
        run_evenkeel("train --plan --config " EVENKEEL_SOURCE_DIR "/configs/8b_8gpu.json");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find(" parameters on 8 ranks, tensor parallel 1;"), std::string::npos)
        << outcome.output;
    EXPECT_NE(outcome.output.find("\n  in all "), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("parallel.zero_stage=1, in use, saves "), std::string::npos)
        << outcome.output;
    const Outcome whole =
        run_evenkeel("train --plan --set parallel.zero_stage=0 --config " EVENKEEL_SOURCE_DIR
                     "/configs/8b_8gpu.json");
    EXPECT_NE(whole.output.find("parallel.zero_stage=1 would save "), std::string::npos)
        << whole.output;
    const Outcome bad =
        run_evenkeel("train --plan --set parallel.tensor_parallel=5 --config " EVENKEEL_SOURCE_DIR
                     "/configs/8b_8gpu.json");
    EXPECT_EQ(bad.status, 2) << bad.output;
}

}  // namespace
}  // namespace evenkeel::testing
