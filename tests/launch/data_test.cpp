// Text to files of tokens, and runs on them, as a user would.
#include <gtest/gtest.h>

#include <filesystem>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "tests/launch/command_line.h"
#include "tests/support/run_files.h"
#include "tests/support/token_files.h"

namespace evenkeel::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void expect_words(const Outcome& outcome, int status, const std::vector<std::string>& words) {
    EXPECT_EQ(outcome.status, status) << outcome.output;
    for (const std::string& word : words) {
        EXPECT_NE(outcome.output.find(word), std::string::npos)
            << "\"" << word << "\" is not in: " << outcome.output;
    }
}

Json json_in(const std::string& output) { return Json::parse(output.substr(output.find("{\n"))); }

// A corpus of documents of lines of text.
class DataCommandTest : public ::testing::Test {
  protected:
    DataCommandTest() {
        const std::string text = tiny_.directory.file("words");
        write_text(text, 20000);
        std::string lines;
        const std::string all = read_file(text);
        for (std::size_t at = 0; at + 200 < all.size(); at += 200) {
            lines += Json{{"text", all.substr(at, 120 + at % 80)}}.dump() + "\n";
        }
        prefix_ = tiny_.directory.file("corpus");
        input_ = tiny_.directory.write("corpus.jsonl", lines);
    }
    TinyRun tiny_;
    std::string prefix_, input_;
};

TEST_F(DataCommandTest, BuildInspectTrainEvaluateAndSample) {
    const Outcome built = run_evenkeel("data build " + input_ + " --out " + prefix_ + " --json");
    ASSERT_EQ(built.status, 0) << built.output;
    const Json made = json_in(built.output);
    EXPECT_GT(made.at("documents"), 50);

    const Outcome looked = run_evenkeel("data inspect " + prefix_ + ".bin --json");
    ASSERT_EQ(looked.status, 0) << looked.output;
    const Json held = json_in(looked.output);
    EXPECT_EQ(held.at("format"), "Megatron");
    EXPECT_EQ(held.at("type"), "u8");
    EXPECT_EQ(held.at("tokens"), made.at("tokens"));
    EXPECT_EQ(held.at("documents"), made.at("documents"));
    EXPECT_EQ(held.at("tokenizer"), "bytes");
    EXPECT_EQ(held.at("end_of_document"), 0);
    expect_words(run_evenkeel("data inspect " + prefix_), 0, {"Megatron, ids of u8", "documents"});

    const std::string on_it = "--set data.path=" + prefix_ + ".bin ";
    const Outcome trained = run_evenkeel(tiny_.train(on_it));
    ASSERT_EQ(trained.status, 0) << trained.output;
    expect_words(trained, 0,
                 {"tokens to train on", "corpus.bin: Megatron, u8", "nats/token", "sample"});
    const Json summary = Json::parse(read_file(tiny_.run + "/summary.json"));
    EXPECT_TRUE(summary.at("unigram_entropy").is_null());
    EXPECT_GT(summary.at("train_tokens"), 1000);

    const Outcome judged = run_evenkeel("eval " + tiny_.run + " --json");
    ASSERT_EQ(judged.status, 0) << judged.output;
    EXPECT_NEAR(json_in(judged.output).at("validation_loss").get<double>(),
                summary.at("validation_loss").get<double>(), 1e-6);
    expect_words(run_evenkeel("sample " + tiny_.run + " --prompt ship --tokens 5"), 0, {"ship"});
    expect_words(run_evenkeel("report " + tiny_.run), 0, {});
}

TEST_F(DataCommandTest, WhatAKilledBuildHasLeftIsNamed) {
    const std::string left = prefix_ + ".bin.tmp-4194305";  // more than any process has
    write_text(left, 10);
    const Outcome built = run_evenkeel("data build " + input_ + " --out " + prefix_);
    expect_words(built, 0, {left + ": left by a build that was killed", "remove it"});
    EXPECT_TRUE(fs::exists(left)) << "it may be another machine's";
}

TEST_F(DataCommandTest, AResumedRunIsTheUndisturbedOne) {
    ASSERT_EQ(run_evenkeel("data build " + input_ + " --out " + prefix_).status, 0);
    const std::string on_it =
        "--set data.path=" + prefix_ + "," + prefix_ + ".idx --set data.weights=0.7,0.3 ";
    ASSERT_EQ(run_evenkeel(tiny_.train(on_it)).status, 0);
    const std::string other = "--set trainer.run_dir=" + tiny_.directory.file("other") + " ";
    ASSERT_EQ(run_evenkeel(tiny_.train(on_it + "--set trainer.stop_at_step=2 " + other)).status, 0);
    ASSERT_EQ(run_evenkeel(tiny_.train(on_it + "--set trainer.resume=true " + other)).status, 0);
    const std::string newest = fs::path(newest_checkpoint(tiny_.run)).filename().string();
    EXPECT_EQ(
        read_file(tiny_.run + "/checkpoints/" + newest + "/model.safetensors"),
        read_file(tiny_.directory.file("other/checkpoints/") + newest + "/model.safetensors"));
    // Other shares are another order.
    expect_words(run_evenkeel(tiny_.train("--set trainer.resume=true --set data.weights=0.6,0.4 "
                                          "--set data.path=" +
                                          prefix_ + "," + prefix_ + ".idx ")),
                 2, {"data"});
}

TEST_F(DataCommandTest, RefusalsSayWhatToChange) {
    expect_words(run_evenkeel("data"), 2, {"a subcommand is required: build, inspect"});
    expect_words(run_evenkeel("data nothing --help"), 2, {"nothing: no such command"});
    expect_words(run_evenkeel("data nothing"), 2, {"nothing: no such command"});
    expect_words(run_evenkeel("data build --help"), 0, {"Examples:", "--end-of-document"});
    expect_words(run_evenkeel("data inspect --help"), 0, {"Examples:"});
    expect_words(run_evenkeel("data build " + tiny_.directory.file("none") + " --out " + prefix_),
                 2, {"none: no such file"});
    expect_words(run_evenkeel("data build " + input_ + " --out " + prefix_ + " --tokenizer " +
                              tiny_.directory.write("tokenizer.json", "{}")),
                 2, {"tokenizer.json", "Hugging Face", "SentencePiece"});
    const std::string ids =
        tiny_.directory.write("ids.bin", bytes_of(std::vector<std::uint16_t>(5000, 700)));
    expect_words(run_evenkeel(tiny_.train("--set data.path=" + ids)), 1,
                 {"ids.bin: token", "got id 700, want 0 to 255"});
    tiny_.directory.write("ids.json",
                          R"({"tokenizer":"bytes","vocab_size":900,"end_of_document":0})");
    expect_words(run_evenkeel(tiny_.train("--set data.path=" + ids)), 2,
                 {"model.vocab_size: got 256, want 900"});
    const std::string wide = testing::write_documents(tiny_.directory, "wide", {{1, 2, 900}});
    tiny_.directory.write("wide.json",
                          R"({"tokenizer":"bytes","vocab_size":900,"end_of_document":0})");
    expect_words(run_evenkeel("data inspect " + wide), 1, {"token 2", "got id 900, want 0 to 899"});
    expect_words(run_evenkeel("data inspect " + tiny_.directory.write("odd.bin", "odd")), 1,
                 {"odd.bin: got 3 bytes"});
    expect_words(run_evenkeel("data inspect " + input_), 2,
                 {"corpus.jsonl is no file of tokens; want FILE.bin, or a PREFIX"});
}

}  // namespace
}  // namespace evenkeel::testing
