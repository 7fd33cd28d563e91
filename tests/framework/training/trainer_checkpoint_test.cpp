// Checkpoints of runs: training goes on when one cannot be written, and resumes from the newest that is as it was
// written.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "framework/storage/checkpoint.h"
#include "tests/framework/training/trainer_runs.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using testing::BigramTable;

class TrainerCheckpointTest : public testing::TrainerTest {
  protected:
    TrainerCheckpointTest() { config_.checkpoint_interval = 5; }

    CheckpointStore store(const std::string& name) const {
        return CheckpointStore(files_.file(name) + "/checkpoints", 0);
    }
    TrainResult run_with(TrainableModel& model,
                         const std::string& name,
                         const std::function<void(std::int64_t)>& after_step) {
        config_.run_dir = files_.file(name);
        return train(model, data(), config_, schedule_, optimizer_, "{}\n", after_step, alarms_);
    }
};

TEST_F(TrainerCheckpointTest, WritingBesideTheTrainingChangesNothing) {
    BigramTable one, two;
    config_.checkpoint_async = true;
    const TrainResult a = run(one, "a");
    config_.checkpoint_async = false;
    const TrainResult b = run(two, "b");
    EXPECT_EQ(a.losses, b.losses);
    for (std::int64_t step : {15, 20}) {
        EXPECT_EQ(read_file(store("a").path(step) + "/state.safetensors"),
                  read_file(store("b").path(step) + "/state.safetensors"))
            << "step " << step;
    }
    EXPECT_EQ(store("a").steps(), (std::vector<std::int64_t>{15, 20}));
}

// Its file is a pipe beside the checkpoint: the write ends when somebody reads.
class PipedTable : public BigramTable {
  public:
    ModelState state() override {
        ModelState out = BigramTable::state();
        out.shards[0].file = "../pipe";
        return out;
    }
};

TEST_F(TrainerCheckpointTest, AnErrorIsSaidBeforeAPendingCheckpointIsWaitedFor) {
    struct Failure {
        const char* name;
        std::function<void(PipedTable&)> make;
        std::string words;
    };
    const Failure failures[] = {
        {"thrown",
         [](PipedTable& model) {
             model.added_loss = [](int call) -> double {
                 if (call == 3) throw_error(ErrorCode::kIo, "data", "no more of it");
                 return 0.0;
             };
         },
         "error: [data] no more of it; this rank ends when its part of the checkpoint of step 2 is "
         "written\n"},
        {"not_finite", [](PipedTable& model) { model.spoil = [](int call) { return call == 3; }; },
         "; the run ends when the checkpoint of step 2 is written\n"},
        {"drifted", [](PipedTable& model) { model.drifts_at = 2; },
         "table differs; no checkpoint is written"}};
    config_.checkpoint_async = true;
    config_.checkpoint_interval = 2;     // pending when step 3 fails
    config_.replica_check_interval = 3;  // and before a checkpoint
    for (const Failure& failure : failures) {
        SCOPED_TRACE(failure.name);
        PipedTable model;
        failure.make(model);
        const std::string pipe = files_.file(failure.name) + "/checkpoints/pipe";
        const std::string log = files_.file(std::string(failure.name) + ".log");
        fs::create_directories(fs::path(pipe).parent_path());
        ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
        const int before = ::dup(STDERR_FILENO);
        const int file = ::open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
        ::dup2(file, STDERR_FILENO);
        std::atomic<bool> said = false;
        std::thread reader([&] {
            for (int i = 0; i < 1000 && !said; ++i) {
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
                said = read_file(log).find(failure.words) != std::string::npos;
            }
            std::ifstream in(pipe, std::ios::binary);
            while (in.ignore(1 << 16)) {
            }
        });
        EXPECT_THROW(run(model, failure.name), Error);
        ::dup2(before, STDERR_FILENO);
        ::close(before);
        ::close(file);
        reader.join();
        EXPECT_TRUE(said) << read_file(log);
    }
}

TEST_F(TrainerCheckpointTest, GoesOnWithoutADirectoryToWriteTo) {
    for (bool asynchronous : {true, false}) {
        SCOPED_TRACE(asynchronous);
        config_.checkpoint_async = asynchronous;
        const std::string name = asynchronous ? "a" : "b";
        const std::string directory = files_.file(name) + "/checkpoints";
        BigramTable model;
        ::testing::internal::CaptureStderr();
        const TrainResult result = run_with(model, name, [&](std::int64_t step) {
            if (step == 9) {
                // A checkpoint may be being written there.
                for (std::error_code failed; !fs::is_regular_file(directory);) {
                    fs::remove_all(directory, failed);
                    std::ofstream(directory) << "in the way";
                }
            }
            if (step == 14) fs::remove(directory);
        });
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_EQ(result.losses.size(), 20u);
        EXPECT_NE(said.find("checkpoint of step 10 could not be written"), std::string::npos)
            << said;
        EXPECT_EQ(store(name).steps(), (std::vector<std::int64_t>{15, 20}));
    }
}

TEST_F(TrainerCheckpointTest, TheLastOneMustBeThere) {
    BigramTable model;
    const std::string directory = files_.file("run") + "/checkpoints";
    try {
        run_with(model, "run", [&](std::int64_t step) {
            if (step != 19) return;
            fs::remove_all(directory);
            std::ofstream(directory) << "in the way";
        });
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        EXPECT_NE(std::string(error.what()).find("step 20: the checkpoint that the run ends with"),
                  std::string::npos)
            << error.what();
        EXPECT_NE(std::string(error.what()).find(directory), std::string::npos) << error.what();
    }
}

TEST_F(TrainerCheckpointTest, GoesOnWithoutRecordsWhereTheyCannotBeWritten) {
    const std::string directory = files_.file("run"), metrics = directory + "/metrics.jsonl";
    fs::create_directories(metrics);  // in the way
    fs::create_directories(directory + "/config.json");
    BigramTable model, straight;
    ::testing::internal::CaptureStderr();
    const TrainResult result = run_with(model, "run", [&](std::int64_t step) {
        if (step == 9) fs::remove(directory + "/config.json");
        if (step == 12) fs::remove(metrics);
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(result.losses, run(straight, "straight").losses);
    const std::size_t at = said.find("what the run says of itself cannot be written: ");
    ASSERT_NE(at, std::string::npos) << said;
    EXPECT_NE(said.find("config.json", at), std::string::npos) << said;
    EXPECT_EQ(said.find("cannot be written", at + 60), std::string::npos) << "once\n" << said;
    EXPECT_NE(said.find("records are written again", at), std::string::npos) << said;
    EXPECT_TRUE(fs::is_regular_file(directory + "/config.json"));
    const auto records = read_metrics(metrics);
    ASSERT_EQ(records.size(), 9u);
    EXPECT_EQ(records.front().step, 12);
}

TEST_F(TrainerCheckpointTest, GoesOnWhileTheDiskIsFull) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount a small file system";
    // Room for a checkpoint (790 KB) and a half.
    const std::string disk = files_.file("disk");
    fs::create_directory(disk);
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1200k") != 0) {
        GTEST_SKIP() << "may not mount a file system here";
    }
    const std::string filler = disk + "/filler";
    ::testing::internal::CaptureStderr();
    BigramTable model;
    config_.checkpoint_keep = 1;
    config_.checkpoint_async = false;  // or room might be made while one is being written
    std::vector<std::int64_t> steps_in_the_end;
    try {
        run_with(model, "disk", [&](std::int64_t step) {
            if (step == 12) {  // somebody makes room
                fs::remove_all(disk + "/checkpoints/step_00000005");
            }
        });
        steps_in_the_end = store("disk").steps();
    } catch (const Error& error) {
        // The last checkpoint found no room beside the one before.
        EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos)
            << error.what();
        steps_in_the_end = store("disk").steps();
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    const std::string newest = newest_verified(store("disk"), {}, false);
    ::umount2(disk.c_str(), MNT_DETACH);
    EXPECT_NE(said.find("checkpoint of step 10 could not be written"), std::string::npos) << said;
    EXPECT_NE(said.find("No space left on device"), std::string::npos) << said;
    EXPECT_EQ(steps_in_the_end, std::vector<std::int64_t>{15});
    EXPECT_NE(newest.find("step_00000015"), std::string::npos) << newest;
}

TEST_F(TrainerCheckpointTest, ResumesFromTheNewestThatIsAsItWasWritten) {
    BigramTable straight;
    const TrainResult want = run(straight, "straight");
    for (const char* file : {"state.safetensors", "trainer.json", "manifest.json"}) {
        SCOPED_TRACE(file);
        const std::string name = concat("damaged_", file);
        BigramTable before;
        config_.stop_at_step = 15;
        run(before, name);
        const std::string path = store(name).path(15) + "/" + file;
        std::string bytes = read_file(path);
        bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
        files_.write(fs::path(path).lexically_relative(files_.path()).string(), bytes);
        config_.stop_at_step = 0;
        config_.resume = true;
        BigramTable after;
        ::testing::internal::CaptureStderr();
        const TrainResult rest = run(after, name);
        const std::string said = ::testing::internal::GetCapturedStderr();
        config_.resume = false;
        EXPECT_NE(said.find(std::string("step_00000015: ") + file), std::string::npos) << said;
        EXPECT_NE(said.find("kept as"), std::string::npos) << said;
        EXPECT_NE(said.find("resuming from"), std::string::npos) << said;
        EXPECT_EQ(rest.losses, std::vector<double>(want.losses.begin() + 10, want.losses.end()));
        EXPECT_TRUE(fs::exists(store(name).path(15) + ".damaged"));
        EXPECT_EQ(store(name).steps(), (std::vector<std::int64_t>{15, 20}));
    }
}

TEST_F(TrainerCheckpointTest, DoesNotBeginAnewWhereNoCheckpointIsGood) {
    BigramTable model, again;
    config_.stop_at_step = 5;
    run(model, "run");
    fs::resize_file(store("run").path(5) + "/state.safetensors", 1000);
    config_.resume = true;
    const std::string metrics = read_file(files_.file("run") + "/metrics.jsonl");
    for (int start = 0; start < 2; ++start) {  // however often
        const Error error = failure(again, "run");
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        EXPECT_NE(std::string(error.what()).find("none of its 1 checkpoints"), std::string::npos)
            << error.what();
    }
    store("run").set_aside(5);
    const Error aside = failure(again, "run");
    EXPECT_EQ(aside.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(aside.what()).find("does not begin anew"), std::string::npos)
        << aside.what();
    config_.resume = false;
    const Error fresh = failure(again, "run");
    EXPECT_EQ(fresh.code(), ErrorCode::kConfig);
    EXPECT_NE(std::string(fresh.what()).find("step_00000005.damaged"), std::string::npos)
        << fresh.what();
    EXPECT_EQ(read_file(files_.file("run") + "/metrics.jsonl"), metrics);
}

}  // namespace
}  // namespace evenkeel
