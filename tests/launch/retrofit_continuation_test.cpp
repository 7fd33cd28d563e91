// What a retrofit leaves to train on, and what it says of it.
#include "launch/retrofit_continuation.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "framework/error.h"
#include "framework/training/run_state.h"
#include "launch/untold.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

RunConfig original_of(const std::string& data, std::int64_t vocab_size = 256) {
    RunConfig config;
    config.data.path = data;
    config.model.vocab_size = vocab_size;
    return config;
}

Continuation continued(const RunConfig& original,
                       const std::string& data,
                       std::vector<std::string> overrides = {}) {
    return continuation_of(original, original.model,
                           {"/from", "/out", data, std::move(overrides), 1});
}

std::string words_of(const RetrofitFindings& findings) {
    std::string text;
    for (const std::string& note : findings.notes) text += note + "\n";
    for (const std::string& command : findings.commands) text += command + "\n";
    return text;
}

std::string told(const Continuation& continuation, const DataSeen& seen) {
    RetrofitFindings findings;
    findings.out = "out";
    add_commands(continuation.retrofitted, seen, findings);
    EXPECT_EQ(findings.commands.size(), 3u) << words_of(findings);
    return words_of(findings);
}

TEST(RetrofitContinuation, TrainsOnTheTokensThatItHasSeen) {
    const Continuation runs = continued(original_of("", 64), "/tokens.bin");
    EXPECT_EQ(runs.retrofitted.data.path, "/tokens.bin");
    EXPECT_EQ(runs.control.data.path, "/tokens.bin");
    RetrofitFindings findings;
    EXPECT_NO_THROW(check_continuation(runs, findings));
    const std::string words = told(runs, {"/tokens.bin", false});
    EXPECT_NE(words.find("train on /tokens.bin\n"), std::string::npos) << words;
    EXPECT_NE(words.find("train --config out/config.json\n"), std::string::npos) << words;
    const Continuation stream =
        continued(original_of("", 64), "/tokens.bin", {"data.packing=stream"});
    EXPECT_EQ(stream.control.data.packing, DataConfig::Packing::kStream);
}

TEST(RetrofitContinuation, AsksForTokensWhereThereAreNoneAndBytesAreNotTheModels) {
    const Continuation runs = continued(original_of("", 64), "");
    RetrofitFindings findings;
    EXPECT_NO_THROW(check_continuation(runs, findings));
    const std::string words = told(runs, {"/rows.safetensors", false});
    EXPECT_NE(words.find("want a .bin file of tokens"), std::string::npos) << words;
    EXPECT_NE(words.find("/config.json --set data.path=FILE.bin"), std::string::npos) << words;
}

TEST(RetrofitContinuation, StaysWithTheRunsOwnDataAndSaysSo) {
    const Continuation runs = continued(original_of("/own.txt"), "/other.txt");
    EXPECT_EQ(runs.retrofitted.data.path, "/own.txt");
    EXPECT_EQ(runs.control.data.path, "/own.txt");
    const std::string words = told(runs, {"/other.txt", true});
    EXPECT_NE(words.find("train on /own.txt, the run's own; --data is"), std::string::npos)
        << words;
    EXPECT_EQ(told(continued(original_of("/own.txt"), ""), {"", true}).find("train on"),
              std::string::npos);
    EXPECT_EQ(continued(original_of("/own.txt"), "/other.txt", {"data.path=/asked.txt"})
                  .control.data.path,
              "/asked.txt");
}

TEST(RetrofitContinuation, NamesEveryFileFromTheRoot) {
    RunConfig original = original_of("a.bin,b.bin");
    original.data.validation_path = "c.bin";
    original.data.tokenizer = "t.model";
    const DataConfig data = continued(original, "").control.data;
    const std::string here = std::filesystem::current_path().string();
    EXPECT_EQ(data.path, here + "/a.bin," + here + "/b.bin");
    EXPECT_EQ(data.validation_path, here + "/c.bin");
    EXPECT_EQ(data.tokenizer, here + "/t.model");
}

TEST(RetrofitContinuation, IsRefusedWhereTrainingWouldBe) {
    const auto refused = [](const std::string& assignment, const std::string& words) {
        RetrofitFindings findings;
        try {
            check_continuation(continued(original_of("/a.txt"), "", {assignment}), findings);
            ADD_FAILURE() << assignment << " passes";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kConfig);
            EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
        }
    };
    refused("trainer.steps=0", "trainer.steps: got 0");
    refused("schedule.peak_lr=-1", "schedule.peak_lr: got -1");
    refused("trainer.eval_interval=-4", "trainer.eval_interval: got -4");
    refused("trainer.first_phase_steps=999999", "trainer.first_phase_steps: got 999999");
}

TEST(RetrofitContinuation, SaysWhereTheRunEndsBeforeTheNormIsThere) {
    const auto notes = [](std::int64_t steps) {
        RunConfig original = original_of("/a.txt");
        original.model.attention.qk_norm.anneal_steps = 80;
        RetrofitFindings findings;
        check_continuation(continued(original, "", {"trainer.steps=" + std::to_string(steps)}),
                           findings);
        return words_of(findings);
    };
    EXPECT_EQ(notes(80), "");
    EXPECT_NE(notes(20).find("--anneal 80, trainer.steps 20, lambda 0.25"), std::string::npos)
        << notes(20);
}

std::string course_of(const RunConfig& original,
                      const std::string& from,
                      std::vector<std::string> overrides = {}) {
    const ContinuationPlan plan{from, "/out", "", std::move(overrides), 1};
    RetrofitFindings findings;
    add_course(continuation_of(original, original.model, plan), plan, findings);
    return words_of(findings);
}

TEST(RetrofitContinuation, SaysWhatBothTrainAndWhereInTheDataTheyBegin) {
    const testing::TemporaryDirectory files;
    RunConfig original = original_of("/a.txt");
    original.trainer.seed = 7;
    RunState state;
    state.seed = 7;
    state.seq_len = original.trainer.seq_len;
    state.sample = 640;
    state.model = state.settings = "{}";
    files.write("trainer.json", to_json(state));
    const auto expect = [&](std::vector<std::string> overrides, const std::string& words) {
        const std::string got = course_of(original, files.path(), std::move(overrides));
        EXPECT_NE(got.find(words), std::string::npos) << words << "\n" << got;
    };
    expect({}, "both train 200 steps of 16 sequences of 256 tokens, schedule.peak_lr 0.003\n");
    expect({}, "both go on in the data after the 640 sequences that the run was trained on\n");
    expect({"data.path=/b.txt"}, "trained on, if it is the run's own data\n");
    expect({"trainer.seed=8"}, "first sequence of the data: trainer.seed is not the run's");
    expect({"trainer.seq_len=128"}, "first sequence of the data: trainer.seq_len is not");
}

TEST(RetrofitContinuation, AsksForALearningRateWhereTheModelWasTrainedElsewhere) {
    const testing::TemporaryDirectory files;
    files.write("model.safetensors", "");
    files.write("config.json", R"({"model_type": "llama"})");
    RunConfig original = original_of("/a.txt");
    EXPECT_NE(course_of(original, files.path()).find("is the default, made for small models"),
              std::string::npos)
        << course_of(original, files.path());
    original.schedule = schedule_of_import();
    const std::string words = course_of(original, files.path());
    EXPECT_NE(words.find("schedule.peak_lr 1e-05; schedule.peak_lr 1e-05 is what an import gets"),
              std::string::npos)
        << words;
    EXPECT_NE(words.find("--set schedule.peak_lr=RATE for both"), std::string::npos) << words;
    EXPECT_EQ(course_of(original, files.path(), {"schedule.peak_lr=2e-5"}),
              "both train 200 steps of 16 sequences of 256 tokens, schedule.peak_lr 2e-05\n");
}

}  // namespace
}  // namespace evenkeel
