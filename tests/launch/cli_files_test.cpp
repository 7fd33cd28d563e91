// What a user meets when the files of a run or a folder are damaged, changed, missing or too large for the disk.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "tests/launch/command_line.h"

namespace evenkeel::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

TEST(CliFilesTest, EvalRefusesACheckpointOfAnotherModel) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train()).status, 0);
    const Outcome narrower = run_evenkeel("eval " + tiny.run + " --set model.width=16");
    EXPECT_TRUE(narrower.status == 1 || narrower.status == 2) << narrower.output;
    EXPECT_NE(narrower.output.find("width"), std::string::npos) << narrower.output;
    const Outcome shallower = run_evenkeel("eval " + tiny.run + " --set model.num_layers=1");
    EXPECT_TRUE(shallower.status == 1 || shallower.status == 2) << shallower.output;
    expect_refusal(run_evenkeel(tiny.train("--set trainer.resume=true --set model.num_layers=1")),
                   {2, {"num_layers", "another model"}});
}

TEST(CliFilesTest, TruncatedCheckpointIsNamedAndOthersStayUsable) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train("--set trainer.checkpoint_interval=2")).status, 0);
    const std::string file = tiny.checkpoint(4) + "/model.safetensors";
    fs::resize_file(file, fs::file_size(file) - 100);
    for (const char* command : {"eval ", "sample "}) {
        const Outcome outcome = run_evenkeel(command + tiny.run);
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        EXPECT_NE(outcome.output.find("step_00000004: model.safetensors: got "), std::string::npos)
            << outcome.output;
        expect_refusal(run_evenkeel(command + tiny.checkpoint(4)), {1, {"model.safetensors"}});
    }
    expect_refusal(run_evenkeel("inspect " + tiny.run), {1, {"model.safetensors"}});
    EXPECT_EQ(run_evenkeel("eval " + tiny.checkpoint(2)).status, 0);
}

TEST(CliFilesTest, InspectShowsTheManifestAndVerifies) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train()).status, 0);
    const std::string checkpoint = tiny.checkpoint(4);
    const Outcome shown = run_evenkeel("inspect " + tiny.run);
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_NE(shown.output.find("xxh64"), std::string::npos) << shown.output;
    // The model's settings once, in lines that fit a screen.
    EXPECT_EQ(count_of("num_layers=", shown.output), 1) << shown.output;
    EXPECT_EQ(count_of("metadata   model = as above\n", shown.output), 1) << shown.output;
    std::istringstream lines(shown.output);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 200u) << line;
    const Outcome verified = run_evenkeel("inspect " + checkpoint + " --verify");
    EXPECT_EQ(verified.status, 0) << verified.output;
    EXPECT_NE(verified.output.find("every file is as the manifest says"), std::string::npos)
        << verified.output;
    const Json json =
        Json::parse(run_evenkeel("inspect " + checkpoint + " --verify --json").output);
    EXPECT_EQ(json.at("verified"), true);
    EXPECT_EQ(json.at("step"), 4);
    EXPECT_EQ(json.at("layout").at("tensor_parallel"), 1);
    EXPECT_TRUE(json.at("files").contains("optimizer.safetensors"));

    std::string text = read_file(checkpoint + "/trainer.json");
    text.back() = ' ';
    std::ofstream(checkpoint + "/trainer.json") << text;
    expect_refusal(run_evenkeel("inspect " + checkpoint + " --verify"),
                   {1, {"trainer.json", "got hash", "not as its manifest says"}});
    fs::remove(checkpoint + "/manifest.json");
    expect_refusal(run_evenkeel("inspect " + checkpoint + " --verify"),
                   {1, {"manifest.json", "is missing"}});
}

TEST(CliFilesTest, AChangeByIntentIsAcceptedInOneCommand) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train()).status, 0);
    const std::string checkpoint = tiny.checkpoint(4);
    const std::string state = checkpoint + "/trainer.json";
    std::string text = read_file(state);
    text.back() = ' ';
    std::ofstream(state) << text;
    expect_refusal(run_evenkeel("eval " + checkpoint), {1, {"--accept"}});
    const Outcome accepted = run_evenkeel("inspect " + tiny.run + " --accept");
    EXPECT_EQ(accepted.status, 0) << accepted.output;
    EXPECT_NE(accepted.output.find("changed   trainer.json: got hash"), std::string::npos)
        << accepted.output;
    EXPECT_EQ(run_evenkeel("inspect " + checkpoint + " --verify").status, 0);
    EXPECT_EQ(run_evenkeel("eval " + tiny.run).status, 0);
    // Without a manifest too, but not what nobody could read.
    fs::remove(checkpoint + "/manifest.json");
    EXPECT_EQ(run_evenkeel("inspect " + checkpoint + "/ --accept").status, 0);
    EXPECT_EQ(run_evenkeel("eval " + tiny.run).status, 0);
    fs::resize_file(checkpoint + "/model.safetensors", 100);
    expect_refusal(run_evenkeel("inspect " + checkpoint + " --accept"), {1, {"model.safetensors"}});
    expect_refusal(run_evenkeel("inspect " + tiny.directory.path() + " --accept"),
                   {1, {"got no checkpoint"}});
}

TEST(CliFilesTest, AReaderThatHasReadEnoughIsNoError) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train()).status, 0);
    const std::string inspect = std::string(EVENKEEL_PROGRAM) + " inspect " + tiny.run;
    const Outcome cut = run_command("{ sleep 0.2; " + inspect + "; echo $? >&2; } | true");
    EXPECT_EQ(cut.output, "0\n");
    const Outcome full = run_command("{ " + inspect + "; echo $? >&2; } >/dev/full");
    EXPECT_NE(full.output.find("cannot write all of the result\n1\n"), std::string::npos)
        << full.output;
}

// Sets the first number of an fp32 tensor of a safetensors file.
void set_number(const std::string& file, const std::string& tensor, float value) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    std::uint64_t length = 0;
    stream.read(reinterpret_cast<char*>(&length), sizeof length);
    std::string header(length, ' ');
    stream.read(header.data(), static_cast<std::streamsize>(length));
    const std::int64_t begin = Json::parse(header).at(tensor).at("data_offsets").at(0);
    stream.seekp(static_cast<std::streamoff>(sizeof length + length) + begin);
    stream.write(reinterpret_cast<const char*>(&value), sizeof value);
}

TEST(CliFilesTest, NumbersThatNoTrainingLeavesAreRefused) {
    // Byte 0 is in no text, so that its row of the embedding changes no loss.
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    struct Case {
        const char *file, *tensor;
        float value;
        const char* words;
    };
    for (const Case& c :
         {Case{"model", "embedding", kNan, "the weight embedding holds a NaN"},
          Case{"optimizer", "embedding.exp_avg", kNan, "embedding.exp_avg holds a NaN"},
          Case{"optimizer", "embedding.exp_avg_sq", -1.0f, "exp_avg_sq holds a negative"}}) {
        const TinyRun tiny;
        ASSERT_EQ(run_evenkeel(tiny.train()).status, 0);
        set_number(tiny.checkpoint(4) + "/" + c.file + ".safetensors", c.tensor, c.value);
        ASSERT_EQ(run_evenkeel("inspect " + tiny.run + " --accept").status, 0);
        expect_refusal(run_evenkeel(tiny.train("--set trainer.resume=true --set trainer.steps=6")),
                       {1, {c.words, "earlier checkpoint"}});
        const std::string init = " --set trainer.init_from=" + tiny.checkpoint(4) +
                                 " --set trainer.run_dir=" + tiny.directory.file("other");
        expect_refusal(run_evenkeel(tiny.train(init)), {1, {c.words}});
    }
}

TEST(CliFilesTest, WhatNoRunCouldGoOnFromIsNotAccepted) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train("--set trainer.checkpoint_interval=2")).status, 0);
    const std::string from = tiny.checkpoint(2), to = tiny.checkpoint(4);
    const auto over = fs::copy_options::overwrite_existing;
    fs::copy_file(to + "/trainer.json", to + "/kept", over);
    fs::copy_file(from + "/trainer.json", to + "/trainer.json", over);
    expect_refusal(run_evenkeel("inspect " + to + " --accept"), {1, {"is that of step 2"}});
    std::ofstream(to + "/trainer.json") << "{}";
    expect_refusal(run_evenkeel("inspect " + to + " --accept"), {1, {"trainer.json"}});
    fs::copy_file(to + "/kept", to + "/trainer.json", over);
    fs::remove(to + "/kept");
    EXPECT_EQ(run_evenkeel("inspect " + to + " --accept").status, 0);
    fs::remove(to + "/optimizer.safetensors");
    expect_refusal(run_evenkeel("inspect " + to + " --accept"), {1, {"optimizer.safetensors"}});
    // The one before is what a run goes on from.
    const Outcome resumed =
        run_evenkeel(tiny.train("--set trainer.resume=true --set trainer.steps=6"));
    EXPECT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_NE(resumed.output.find("resuming from " + from), std::string::npos) << resumed.output;
}

TEST(CliFilesTest, AFileAtItsLimitIsAnErrorAndNoDeath) {
    const TinyRun tiny;
    const Outcome outcome =
        testing::run_command("ulimit -f 8; OMP_NUM_THREADS=1 " EVENKEEL_PROGRAM " " + tiny.train());
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_NE(outcome.output.find("File too large"), std::string::npos) << outcome.output;
}

TEST(CliFilesTest, AFolderWithoutItsConfigurationIsNamedItself) {
    const TemporaryDirectory directory;
    const std::string folder = directory.file("folder");
    fs::create_directory(folder);
    fs::copy_file(EVENKEEL_SOURCE_DIR "/tests/fixtures/hugging_face/llama/model.safetensors",
                  folder + "/model.safetensors");
    expect_refusal(run_evenkeel("eval " + folder),
                   {1, {"nor a Hugging Face folder, " + folder + "/config.json is missing"}});
    std::ofstream(folder + "/config.json").flush();
    expect_refusal(run_evenkeel("eval " + folder), {2, {folder + "/config.json"}});
}

TEST(CliFilesTest, LyingSafetensorsFileIsNamed) {
    const TemporaryDirectory directory;
    const std::string header =
        R"({"w":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4000000]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    const std::string file = directory.write("lie.safetensors", bytes + header + "abcd");
    expect_refusal(run_evenkeel("inspect " + file), {1, {"lie.safetensors"}});
}

TEST(CliFilesTest, FullDiskLeavesEarlierCheckpointsIntact) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount a small file system";
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train("--set trainer.checkpoint_interval=2 "
                                      "--set trainer.stop_at_step=2"))
                  .status,
              0);
    std::uintmax_t checkpoint_bytes = 0;
    for (const auto& file : fs::directory_iterator(tiny.checkpoint(2))) {
        checkpoint_bytes += fs::file_size(file);
    }
    // Room for that checkpoint and half of the next one.
    const std::string disk = tiny.directory.file("disk");
    fs::create_directory(disk);
    const std::string size = "size=" + std::to_string(checkpoint_bytes * 3 / 2 + (64 << 10));
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, size.c_str()) != 0) {
        GTEST_SKIP() << "may not mount a file system here";
    }
    const std::string run = disk + "/run";
    const Outcome outcome =
        run_evenkeel(tiny.train("--set trainer.checkpoint_interval=2 "
                                "--set trainer.run_dir=" +
                                run));
    const Outcome kept = run_evenkeel("eval " + run + "/checkpoints/step_00000002");
    const bool incomplete_exists = fs::exists(run + "/checkpoints/step_00000004");
    ::umount2(disk.c_str(), MNT_DETACH);
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_NE(outcome.output.find(disk), std::string::npos) << outcome.output;
    EXPECT_EQ(kept.status, 0) << kept.output;
    EXPECT_FALSE(incomplete_exists);
}

}  // namespace
}  // namespace evenkeel::testing
