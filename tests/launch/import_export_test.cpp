// Hugging Face folders in and out, as a user does it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/safetensors.h"
#include "launch/saved_run.h"
#include "tests/launch/command_line.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::Outcome;
using testing::run_evenkeel;
using testing::TemporaryDirectory;
using testing::TinyRun;

std::string fixture(const std::string& name) {
    return std::string(EVENKEEL_SOURCE_DIR) + "/tests/fixtures/hugging_face/" + name;
}

// A model of bytes as a Hugging Face folder: trained for a few steps here, exported.
class ImportExportTest : public ::testing::Test {
  protected:
    static void SetUpTestSuite() {
        run_ = new TinyRun;
        const Outcome trained =
            run_evenkeel(run_->train("--set model.attention.qk_norm.gain=shared_channel"));
        ASSERT_EQ(trained.status, 0) << trained.output;
        const Outcome exported = run_evenkeel("export " + run_->run + " " + folder());
        ASSERT_EQ(exported.status, 0) << exported.output;
        ASSERT_NE(exported.output.find("qwen3"), std::string::npos) << exported.output;
    }
    static void TearDownTestSuite() {
        delete run_;
        run_ = nullptr;
    }
    static std::string folder() { return run_->directory.file("folder"); }
    static Json json_of(const std::string& arguments) {
        const Outcome outcome = run_evenkeel(arguments);
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        return Json::parse(outcome.output.substr(outcome.output.find('{')));
    }

    static TinyRun* run_;
    TemporaryDirectory files_;
};
TinyRun* ImportExportTest::run_ = nullptr;

TEST_F(ImportExportTest, ARunAndItsFolderEvaluateAlike) {
    const std::string data = " --json --set data.path=" + run_->text;
    const double of_run = json_of("eval " + run_->run + data)["validation_loss"];
    const double of_folder = json_of(
        "eval " + folder() + data + " --set trainer.seq_len=" +
        std::to_string(open_saved_run(run_->run, {}).config.trainer.seq_len))["validation_loss"];
    EXPECT_NEAR(of_folder, of_run, 1e-3);
    const std::string how = " --prompt Even --tokens 5 --temperature 0";
    const Outcome sampled = run_evenkeel("sample " + folder() + how);
    EXPECT_EQ(sampled.status, 0) << sampled.output;
    EXPECT_EQ(sampled.output, run_evenkeel("sample " + run_->run + how).output);
}

TEST_F(ImportExportTest, ImportedExportedAndImportedAgainIsTheSame) {
    const std::string first = files_.file("first"), again = files_.file("again");
    std::ofstream(folder() + "/tokenizer.json") << "{\"a\": 1}";
    ASSERT_EQ(run_evenkeel("import " + folder() + " " + first).status, 0);
    ASSERT_EQ(run_evenkeel("export " + first + " " + again).status, 0);
    for (const char* name : {"config.json", "tokenizer.json"}) {
        EXPECT_EQ(read_file(again + "/" + name), read_file(folder() + "/" + name)) << name;
    }
    EXPECT_EQ(read_file(again + "/model.safetensors"), read_file(folder() + "/model.safetensors"));
    const std::string checkpoint = first + "/checkpoints/step_00000000";
    EXPECT_TRUE(fs::exists(checkpoint + "/hugging_face/tokenizer.json"));
    const Json inspected = json_of("inspect " + folder() + " --json");
    EXPECT_EQ(inspected["family"], "qwen3");
    EXPECT_EQ(inspected["config"]["attention"]["qk_norm"]["gain"], "shared_channel");
    fs::remove(folder() + "/tokenizer.json");
}

TEST_F(ImportExportTest, FilesBehindLinksAreKeptOfTheFolderAndItsCacheOnly) {
    // As a cache of downloads has it: MODEL/snapshots/REVISION/NAME -> MODEL/blobs/HASH.
    const fs::path model = files_.file("model"), snapshot = model / "snapshots" / "a1";
    fs::create_directories(snapshot);
    fs::create_directories(model / "blobs");
    for (const char* name : {"config.json", "model.safetensors"}) {
        fs::copy_file(folder() + "/" + name, snapshot / name);
    }
    std::ofstream(model / "blobs" / "77") << "{\"a\": 1}";
    fs::create_symlink("../../blobs/77", snapshot / "tokenizer.json");
    const std::string out = files_.file("out"), refused = files_.file("refused");
    const Outcome taken = run_evenkeel("import " + snapshot.string() + " " + out);
    ASSERT_EQ(taken.status, 0) << taken.output;
    const std::string kept = out + "/checkpoints/step_00000000/hugging_face/tokenizer.json";
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(kept)));

    std::ofstream(files_.file("private")) << "{}";
    fs::create_symlink(files_.file("private"), snapshot / "merges.txt");
    const Outcome outcome = run_evenkeel("import " + snapshot.string() + " " + refused);
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_NE(outcome.output.find("want a file of the folder"), std::string::npos)
        << outcome.output;
    EXPECT_FALSE(fs::exists(refused));
}

TEST_F(ImportExportTest, ALinkThatLeadsToItselfIsNamed) {
    fs::create_symlink("LICENSE", folder() + "/LICENSE");
    const std::string out = files_.file("out");
    const Outcome outcome = run_evenkeel("import " + folder() + " " + out);
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_NE(outcome.output.find("/LICENSE: cannot look at it: "), std::string::npos)
        << outcome.output;
    EXPECT_FALSE(fs::exists(out));
    fs::remove(folder() + "/LICENSE");
}

TEST_F(ImportExportTest, ARunThatStartedFromAnImportKeepsItsFiles) {
    const std::string imported = files_.file("imported"), out = files_.file("out");
    std::ofstream(folder() + "/tokenizer.json") << "{\"a\": 1}";
    ASSERT_EQ(run_evenkeel("import " + folder() + " " + imported).status, 0);
    fs::remove(folder() + "/tokenizer.json");
    const std::string more =
        " --set model.attention.qk_norm.gain=shared_channel"
        " --set trainer.steps=2 --set trainer.init_from=" +
        imported + " --set trainer.run_dir=" + files_.file("more");
    const Outcome trained = run_evenkeel(run_->train(more));
    ASSERT_EQ(trained.status, 0) << trained.output;
    const Outcome exported = run_evenkeel("export " + files_.file("more") + " " + out);
    ASSERT_EQ(exported.status, 0) << exported.output;
    EXPECT_TRUE(fs::exists(out + "/tokenizer.json"));
}

TEST_F(ImportExportTest, ARunThatStartedFromAFolderTakesTheTokenizerAlongAndNothingElse) {
    const std::string from = files_.file("from"), run = files_.file("run"),
                      out = files_.file("out");
    fs::copy(folder(), from);
    for (const char* name : {"tokenizer.json", "spiece.model", "generation_config.json", "LICENSE",
                             "README.md", "train.py", "pytorch_model.bin", "training_args.bin"}) {
        std::ofstream(from + "/" + name) << "{\"of\": \"" << name << "\"}";
    }
    fs::copy_file(from + "/model.safetensors", from + "/old.safetensors");
    fs::create_directory(from + "/onnx");
    const Outcome trained = run_evenkeel(
        run_->train(" --set model.attention.qk_norm.gain=shared_channel --set trainer.steps=1"
                    " --set trainer.init_from=" +
                    from + " --set trainer.run_dir=" + run));
    ASSERT_EQ(trained.status, 0) << trained.output;
    const Outcome exported = run_evenkeel("export " + run + " " + out);
    ASSERT_EQ(exported.status, 0) << exported.output;
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(out)) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names,
              (std::vector<std::string>{"LICENSE", "config.json", "generation_config.json",
                                        "model.safetensors", "spiece.model", "tokenizer.json"}));
    EXPECT_NE(read_file(out + "/model.safetensors"), read_file(from + "/model.safetensors"));
}

TEST_F(ImportExportTest, AFolderWithAManifestMustBeAsItSays) {
    const std::string from = files_.file("from");
    fs::copy(folder(), from);
    std::ofstream(from + "/tokenizer.json") << "{\"a\": 1}";
    write_manifest(from, {});
    const std::string more =
        " --set model.attention.qk_norm.gain=shared_channel --set trainer.steps=1";
    const std::string commands[] = {
        "import " + from + " " + files_.file("imported"),
        "retrofit --model " + from + " --data " + run_->text + " --out " + files_.file("normed"),
        run_->train(more + " --set trainer.init_from=" + from +
                    " --set trainer.run_dir=" + files_.file("started"))};
    const Outcome sound = run_evenkeel("import " + from + " " + files_.file("sound"));
    EXPECT_EQ(sound.status, 0) << sound.output;
    std::ofstream(from + "/tokenizer.json") << "{\"a\": 2}";
    for (const std::string& command : commands) {
        const Outcome outcome = run_evenkeel(command);
        EXPECT_EQ(outcome.status, 1) << command << "\n" << outcome.output;
        EXPECT_NE(outcome.output.find("tokenizer.json: got hash "), std::string::npos)
            << command << "\n"
            << outcome.output;
        EXPECT_NE(outcome.output.find("remove its manifest.json"), std::string::npos)
            << command << "\n"
            << outcome.output;
    }
    for (const char* name : {"imported", "normed", "started"}) {
        EXPECT_FALSE(fs::exists(files_.file(name))) << name;
    }
}

TEST_F(ImportExportTest, TheConfigurationOfAnImportContinuesFromItsWeights) {
    const std::string imported = files_.file("imported"), other = files_.file("other");
    ASSERT_EQ(run_evenkeel("import " + folder() + " " + imported).status, 0);
    const std::string data = " --set data.path=" + run_->text;
    const std::string train = "train --config " + imported + "/config.json" + data +
                              " --set trainer.steps=1 --set schedule.warmup_steps=0"
                              " --set schedule.peak_lr=1e-9 --set trainer.seq_len=16"
                              " --set trainer.batch_size=1 --set trainer.micro_batch_size=1";
    const double before = json_of("eval --json " + imported + data)["validation_loss"];
    for (const auto& [settings, run] : {std::pair{std::string(), imported + "/trained"},
                                        {" --set trainer.run_dir=" + other, other}}) {
        const Outcome trained = run_evenkeel(train + settings);
        ASSERT_EQ(trained.status, 0) << trained.output;
        const double after = json_of(
            "eval --json " + run + data + " --set trainer.seq_len=" +
            std::to_string(open_saved_run(imported, {}).config.trainer.seq_len) +
            " --set trainer.eval_sequences=" +
            std::to_string(
                open_saved_run(imported, {}).config.trainer.eval_sequences))["validation_loss"];
        EXPECT_NEAR(after, before, 1e-3) << run;
    }
}

TEST_F(ImportExportTest, AnImportHasACautiousLearningRateAndSaysSo) {
    const std::string imported = files_.file("imported");
    const Outcome outcome = run_evenkeel("import " + folder() + " " + imported);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    for (const char* words :
         {"(model.type), from weights of fp32", "schedule.peak_lr 1e-05 is what an import gets"}) {
        EXPECT_NE(outcome.output.find(words), std::string::npos) << words << "\n" << outcome.output;
    }
    EXPECT_EQ(Json::parse(read_file(imported + "/config.json"))["schedule"]["peak_lr"], 1e-5);
    const std::string train =
        "train --config " + imported + "/config.json --set data.path=" + run_->text +
        " --set trainer.steps=2 --set trainer.seq_len=16" +
        " --set trainer.batch_size=1 --set trainer.micro_batch_size=1" + " --set trainer.run_dir=";
    const Outcome silent = run_evenkeel(train + files_.file("silent"));
    EXPECT_EQ(silent.status, 0) << silent.output;
    EXPECT_NE(silent.output.find("is what an import gets"), std::string::npos) << silent.output;
    EXPECT_NE(silent.output.find("schedule.warmup_steps: got 20, more than trainer.steps (2)"),
              std::string::npos)
        << silent.output;
    const Outcome named =
        run_evenkeel(train + files_.file("named") + " --set schedule.peak_lr=1e-5");
    EXPECT_EQ(named.status, 0) << named.output;
    EXPECT_EQ(named.output.find("is what an import gets"), std::string::npos) << named.output;
    // A configuration made for a beginning, with the weights of a folder.
    const Outcome begun = run_evenkeel(
        run_->train("--set model.attention.qk_norm.gain=shared_channel --set trainer.steps=1"
                    " --set schedule.warmup_steps=1"
                    " --set trainer.run_dir=" +
                    files_.file("begun") + " --set trainer.init_from=" + folder()));
    EXPECT_EQ(begun.status, 0) << begun.output;
    EXPECT_EQ(begun.output.find("schedule.warmup_steps: got"), std::string::npos) << begun.output;
    EXPECT_NE(begun.output.find("schedule.peak_lr 0.003 is the default, made for small models"),
              std::string::npos)
        << begun.output;
}

TEST_F(ImportExportTest, AStartFromAnotherModelLeavesNoRunDirectory) {
    const std::string imported = files_.file("imported"), run = files_.file("run");
    ASSERT_EQ(run_evenkeel("import " + folder() + " " + imported).status, 0);
    const Outcome trained =
        run_evenkeel("train --config " + imported + "/config.json --set data.path=" + run_->text +
                     " --set model.tied_embeddings=true --set trainer.run_dir=" + run +
                     " --set trainer.seq_len=16");
    EXPECT_EQ(trained.status, 2) << trained.output;
    EXPECT_NE(trained.output.find("holds another model"), std::string::npos) << trained.output;
    EXPECT_FALSE(fs::exists(run));
}

TEST_F(ImportExportTest, ATargetThatIsThereIsRefused) {
    fs::create_directory(files_.file("there"));
    const Outcome imported = run_evenkeel("import " + folder() + " " + files_.file("there"));
    EXPECT_EQ(imported.status, 1) << imported.output;
    EXPECT_NE(imported.output.find("is there already"), std::string::npos) << imported.output;
    const Outcome exported = run_evenkeel("export " + run_->run + " " + files_.file("there"));
    EXPECT_EQ(exported.status, 1) << exported.output;
    EXPECT_TRUE(fs::is_empty(files_.file("there")));
}

TEST_F(ImportExportTest, AWeightThatIsNotFiniteLeavesNothing) {
    const std::string bad = files_.file("bad");
    fs::copy(folder(), bad);
    std::fstream file(bad + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write("\x00\x00\xC0\x7F", 4);  // NaN, in fp32
    file.close();
    const Outcome imported = run_evenkeel("import " + bad + " " + files_.file("run"));
    EXPECT_EQ(imported.status, 1) << imported.output;
    EXPECT_NE(imported.output.find("is NaN or infinite"), std::string::npos) << imported.output;
    EXPECT_EQ(std::distance(fs::directory_iterator(files_.path()), {}), 1);
    EXPECT_NE(run_evenkeel("eval " + bad + " --set data.path=" + run_->text)
                  .output.find("is NaN or infinite"),
              std::string::npos);
}

TEST_F(ImportExportTest, WhatNoFamilyHoldsIsRefusedUnlessItsCodeComesAlong) {
    const TinyRun per_head;
    const Outcome trained = run_evenkeel(per_head.train("--set trainer.steps=3"));
    ASSERT_EQ(trained.status, 0) << trained.output;
    const std::string out = files_.file("out");
    const Outcome refused = run_evenkeel("export " + per_head.run + " " + out);
    EXPECT_EQ(refused.status, 2) << refused.output;
    EXPECT_NE(refused.output.find("--remote-code"), std::string::npos) << refused.output;
    // The nearest family first, and who wants what.
    const std::size_t nearest = refused.output.find("\n  qwen3: ");
    EXPECT_LT(nearest, refused.output.find("\n  llama: ")) << refused.output;
    EXPECT_NE(refused.output.find("llama wants \"none\", the model has \"rms\""), std::string::npos)
        << refused.output;
    EXPECT_FALSE(fs::exists(out));
    const Outcome exported =
        run_evenkeel("export " + per_head.run + " " + out + " --remote-code --shard-size 100000");
    ASSERT_EQ(exported.status, 0) << exported.output;
    EXPECT_TRUE(fs::exists(out + "/modeling_evenkeel.py"));
    EXPECT_TRUE(fs::exists(out + "/model.safetensors.index.json"));
    const Outcome back = run_evenkeel("import " + out + " " + files_.file("back"));
    EXPECT_EQ(back.status, 0) << back.output;
}

TEST_F(ImportExportTest, InspectShowsWhatFixturesMapTo) {
    const Outcome shown = run_evenkeel("inspect " + fixture("stablelm_parallel"));
    EXPECT_EQ(shown.status, 0) << shown.output;
    for (const char* part : {"stablelm", "layers.0.attention.q_gain",
                             "model.layers.0.self_attn.q_layernorm.norms.0.weight"}) {
        EXPECT_NE(shown.output.find(part), std::string::npos) << part << "\n" << shown.output;
    }
}

TEST_F(ImportExportTest, AFolderOfAFamilyThatIsNotKnownIsRefusedByName) {
    const std::string odd = files_.file("odd");
    fs::copy(folder(), odd);
    std::ofstream(odd + "/config.json") << R"({"model_type": "mamba"})";
    const Outcome imported = run_evenkeel("import " + odd + " " + files_.file("run"));
    EXPECT_EQ(imported.status, 2) << imported.output;
    EXPECT_NE(imported.output.find("model_type: got \"mamba\""), std::string::npos);
    // The family's own reason comes before what its files lack.
    const std::string bare = files_.file("bare");
    fs::create_directory(bare);
    fs::copy(fixture("gpt_oss") + "/config.json", bare + "/config.json");
    const Outcome of_config = run_evenkeel("import " + bare + " " + files_.file("run"));
    EXPECT_EQ(of_config.status, 2) << of_config.output;
    EXPECT_NE(of_config.output.find("mixtures of experts"), std::string::npos) << of_config.output;
    // Its files can be looked at all the same.
    const Outcome shown = run_evenkeel("inspect " + odd);
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_NE(shown.output.find("model.embed_tokens.weight"), std::string::npos);
}

}  // namespace
}  // namespace evenkeel
