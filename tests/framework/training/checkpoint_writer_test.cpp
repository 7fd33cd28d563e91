// Checkpoints beside training: what is in them, what happens when they cannot be written, and that a process
// killed at any moment leaves one that can be used.
#include "framework/training/checkpoint_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

#include "framework/storage/safetensors.h"
#include "tests/framework/training/trainer_runs.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using testing::BigramTable;

// Files may not grow beyond this while it lives: writes fail as on a full disk.
class NoRoom {
  public:
    explicit NoRoom(rlim_t bytes) {
        before_ = std::signal(SIGXFSZ, SIG_IGN);
        ::getrlimit(RLIMIT_FSIZE, &limit_);
        const rlimit small = {bytes, limit_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &small);
    }
    ~NoRoom() {
        ::setrlimit(RLIMIT_FSIZE, &limit_);
        std::signal(SIGXFSZ, before_);
    }
    NoRoom(const NoRoom&) = delete;
    NoRoom& operator=(const NoRoom&) = delete;

  private:
    rlimit limit_;
    void (*before_)(int);
};

class CheckpointWriterTest : public ::testing::TestWithParam<bool> {
  protected:
    CheckpointWriter writer(std::int64_t keep = 2) {
        return CheckpointWriter(model_, CheckpointStore(path(), keep), GetParam());
    }
    std::string path() const { return directory_.file("checkpoints"); }
    static float value_in(const std::string& checkpoint) {
        const SafetensorsReader reader(checkpoint + "/state.safetensors");
        const Tensor table = reader.read("table");
        const Tensor moments = reader.read("bias.exp_avg_sq");
        EXPECT_EQ(table.data<float>()[0], table.data<float>()[table.numel() - 1]);
        EXPECT_EQ(table.data<float>()[0], moments.data<float>()[255]);
        return table.data<float>()[0];
    }
    void fill(float value) {
        for (const auto& [name, tensor] : model_.state(true)) tensor.fill(value);
    }
    BigramTable model_;
    testing::TemporaryDirectory directory_;
};

TEST_P(CheckpointWriterTest, HoldsTheStateOfTheMomentItWasStarted) {
    CheckpointWriter checkpoints = writer();
    EXPECT_TRUE(checkpoints.finish());
    EXPECT_EQ(checkpoints.committed(), "");
    for (int step = 1; step <= 3; ++step) {
        fill(static_cast<float>(step));
        checkpoints.start(step, concat("{\"step\": ", step, "}"));
        EXPECT_EQ(checkpoints.pending(), GetParam());
        fill(-1.0f);
        EXPECT_TRUE(checkpoints.finish());
        EXPECT_FALSE(checkpoints.pending());
        EXPECT_EQ(checkpoints.committed(), checkpoints.store().path(step));
        EXPECT_EQ(value_in(checkpoints.committed()), static_cast<float>(step));
        EXPECT_EQ(read_file(checkpoints.committed() + "/trainer.json"),
                  concat("{\"step\": ", step, "}"));
        EXPECT_TRUE(find_faults(checkpoints.committed(), Check::kContents).faults.empty());
    }
    EXPECT_EQ(checkpoints.store().steps(), (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(newest_verified(checkpoints.store(), {}, false), checkpoints.store().path(3));
}

TEST_P(CheckpointWriterTest, PollingBetweenStepsCommits) {
    CheckpointWriter checkpoints = writer();
    checkpoints.start(7, "{}");
    for (int i = 0; i < 10000 && checkpoints.pending(); ++i) {
        checkpoints.poll();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(checkpoints.committed(), checkpoints.store().path(7));
}

TEST_P(CheckpointWriterTest, TheNextOneWaitsForTheOneBefore) {
    CheckpointWriter checkpoints = writer(0);
    for (int step = 1; step <= 4; ++step) checkpoints.start(step, "{}");
    checkpoints.finish();
    EXPECT_EQ(checkpoints.store().steps(), (std::vector<std::int64_t>{1, 2, 3, 4}));
}

TEST_P(CheckpointWriterTest, NoRoomIsReportedAndTheNextIsWritten) {
    CheckpointWriter checkpoints = writer();
    checkpoints.start(1, "{}");
    EXPECT_TRUE(checkpoints.finish());
    {
        const NoRoom full(100'000);
        ::testing::internal::CaptureStderr();
        checkpoints.start(2, "{}");
        EXPECT_FALSE(checkpoints.finish());
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_NE(said.find("checkpoint of step 2 could not be written, those before it"),
                  std::string::npos)
            << said;
        EXPECT_NE(said.find("step_00000002.tmp/state.safetensors: cannot write: File too large"),
                  std::string::npos)
            << said;
        EXPECT_NE(checkpoints.failure().find("File too large"), std::string::npos);
        EXPECT_FALSE(fs::exists(path() + "/step_00000002.tmp")) << "the room is given back";
        EXPECT_EQ(checkpoints.committed(), checkpoints.store().path(1));
    }
    checkpoints.start(3, "{}");
    EXPECT_TRUE(checkpoints.finish()) << checkpoints.failure();
    EXPECT_EQ(checkpoints.store().steps(), (std::vector<std::int64_t>{1, 3}));
}

TEST_P(CheckpointWriterTest, ADirectoryThatIsGoneIsMadeAgain) {
    CheckpointWriter checkpoints = writer();
    checkpoints.start(1, "{}");
    checkpoints.finish();
    fs::remove_all(path());
    checkpoints.start(2, "{}");
    EXPECT_TRUE(checkpoints.finish()) << checkpoints.failure();
    // Now it cannot be made again.
    fs::remove_all(path());
    directory_.write("checkpoints", "a file");
    ::testing::internal::CaptureStderr();
    checkpoints.start(3, "{}");
    EXPECT_FALSE(checkpoints.finish());
    EXPECT_NE(::testing::internal::GetCapturedStderr().find(path()), std::string::npos);
    fs::remove(path());
    checkpoints.start(4, "{}");
    EXPECT_TRUE(checkpoints.finish()) << checkpoints.failure();
}

// A child process saves step after step until it is killed, fifty times.
TEST_P(CheckpointWriterTest, AProcessKilledAtAnyMomentLeavesAVerifiedCheckpoint) {
    constexpr int kKills = 50;
    const CheckpointStore store(path(), 2);
    std::mt19937 random(5);
    std::int64_t newest = 0;
    int interrupted = 0;
    for (int kill = 0; kill < kKills; ++kill) {
        int ready[2];
        ASSERT_EQ(::pipe(ready), 0);
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            CheckpointWriter checkpoints(model_, store, GetParam());
            for (std::int64_t step = newest + 1;; ++step) {
                fill(static_cast<float>(step));
                checkpoints.start(step, concat("{\"checkpoint_format\": 2, \"step\": ", step, "}"));
                checkpoints.finish();
                if (step == newest + 1 && ::write(ready[1], "x", 1) != 1) ::_exit(1);
            }
        }
        ::close(ready[1]);
        char byte = 0;
        EXPECT_EQ(::read(ready[0], &byte, 1), 1);  // the first is there
        ::close(ready[0]);
        std::this_thread::sleep_for(
            std::chrono::microseconds(std::uniform_int_distribution<int>(0, 15000)(random)));
        ::kill(child, SIGKILL);
        int status = 0;
        ::waitpid(child, &status, 0);
        ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        for (const auto& entry : fs::directory_iterator(path())) {
            interrupted += entry.path().extension() == ".tmp";
        }
        const std::string found = newest_verified(store, {}, false);
        ASSERT_NE(found, "") << "kill " << kill;
        const std::int64_t step = read_manifest(found)->step;
        EXPECT_GT(step, newest) << "kill " << kill << ": steps that were saved before are lost";
        EXPECT_EQ(found, store.path(store.steps().back())) << "kill " << kill;
        EXPECT_EQ(value_in(found), static_cast<float>(step)) << "kill " << kill;
        for (const std::int64_t other : store.steps()) {
            EXPECT_TRUE(find_faults(store.path(other), Check::kContents).faults.empty())
                << "kill " << kill << ", step " << other;
        }
        newest = step;
    }
    EXPECT_GE(interrupted, kKills / 10) << "too few kills fell into a save to say anything";
}

INSTANTIATE_TEST_SUITE_P(Ways, CheckpointWriterTest, ::testing::Bool(), [](const auto& test) {
    return test.param ? "Asynchronous" : "Synchronous";
});

}  // namespace
}  // namespace evenkeel
