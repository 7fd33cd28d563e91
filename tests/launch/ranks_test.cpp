// The program under mpirun: one rank's trouble ends all ranks, with one message.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/training/run_lock.h"
#include "tests/launch/command_line.h"

namespace evenkeel::testing {
namespace {

namespace fs = std::filesystem;

Outcome run_ranks(const std::string& arguments) {
    return run_command(
        "OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_rmaps_base_oversubscribe=1 " EVENKEEL_MPIEXEC " " +
        arguments);
}

std::size_t count(const std::string& text, const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size())
        ++n;
    return n;
}

TEST(RanksTest, TwoRanksTrainLikeOne) {
    const TinyRun tiny;
    const std::string settings = "--set model.type=fp32 --set trainer.run_dir=";
    const std::string one = tiny.directory.file("one"), two = tiny.directory.file("two");
    ASSERT_EQ(run_evenkeel(tiny.train(settings + one)).status, 0);
    const Outcome outcome =
        run_ranks("-np 2 " EVENKEEL_PROGRAM " " +
                  tiny.train(settings + two + " --set parallel.tensor_parallel=2"));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(count(outcome.output, "validation loss  "), 1u) << outcome.output;
    const Outcome alone = run_evenkeel("eval " + two);  // on one rank, what two have trained
    EXPECT_EQ(alone.status, 0) << alone.output;
    EXPECT_EQ(count(alone.output, "validation loss  "), 1u) << alone.output;
    // More ranks than the step's batch could be shared by.
    const Outcome four = run_ranks("-np 4 " EVENKEEL_PROGRAM " eval " + two);
    EXPECT_EQ(four.status, 0) << four.output;
    EXPECT_EQ(count(four.output, "validation loss  "), 1u) << four.output;
    const Outcome report = run_evenkeel("report " + two + " --compare " + one);
    const std::string words = "largest relative difference over 4 steps: ";
    const std::size_t at = report.output.find(words);
    ASSERT_NE(at, std::string::npos) << report.output;
    EXPECT_LT(std::stod(report.output.substr(at + words.size())), 1e-5) << report.output;
}

TEST(RanksTest, TwoRanksAreMeasuredAtTheStepsOfOne) {
    const TinyRun tiny;
    const std::string command =
        "bench step --steps 3 --json --set model.type=fp32 --config " + tiny.config;
    const Outcome one = run_evenkeel(command);
    const Outcome two =
        run_ranks("-np 2 " EVENKEEL_PROGRAM " " + command + " --set parallel.tensor_parallel=2");
    ASSERT_EQ(one.status, 0) << one.output;
    ASSERT_EQ(two.status, 0) << two.output;
    const auto losses = [](const Outcome& outcome) {
        return nlohmann::json::parse(outcome.output).at("losses").get<std::vector<double>>();
    };
    const std::vector<double> want = losses(one), got = losses(two);
    ASSERT_EQ(got.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]);
}

TEST(RanksTest, AnAlarmEndsAllRanksAndIsSaidOnce) {
    const TinyRun tiny;
    const Outcome outcome =
        run_ranks("-np 4 " EVENKEEL_PROGRAM " " +
                  tiny.train("--set parallel.tensor_parallel=2 --set trainer.micro_batch_size=1 "
                             "--set alarms.logit_bound.threshold=0.5 "
                             "--set alarms.logit_bound.action=end"));
    EXPECT_EQ(outcome.status, 5) << outcome.output;
    EXPECT_EQ(count(outcome.output, "after a checkpoint, "), 1u) << outcome.output;
    EXPECT_EQ(run_evenkeel("inspect " + tiny.run).status, 0) << "the checkpoint is whole";
}

TEST(RanksTest, BadConfigurationIsSaidOnce) {
    const TinyRun tiny;
    const Outcome outcome =
        run_ranks("-np 2 " EVENKEEL_PROGRAM " " + tiny.train("--set trainer.stepz=4"));
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_EQ(count(outcome.output, "unknown key"), 1u) << outcome.output;
}

TEST(RanksTest, HeadsThatRanksCannotShareEndAllRanks) {
    const TinyRun tiny;
    const Outcome outcome =
        run_ranks("-np 3 " EVENKEEL_PROGRAM " " +
                  tiny.train("--set parallel.tensor_parallel=3 --set model.vocab_size=258 "
                             "--set model.feed_forward_width=96"));
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("num_heads"), std::string::npos) << outcome.output;
}

TEST(RanksTest, OneFailingRankEndsTheOther) {
    const TinyRun tiny;
    // Equal settings, but only one rank's directory has the text.
    std::ofstream(tiny.directory.file("here")) << read_file(tiny.text);
    const std::string train = std::string(EVENKEEL_PROGRAM " ") +
                              tiny.train("--set parallel.tensor_parallel=2 --set data.path=here");
    const Outcome outcome = run_ranks("-np 1 -wdir " + tiny.directory.path() + " " + train +
                                      " : -np 1 -wdir / " + train);
    EXPECT_NE(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.status, 124) << "the ranks hung: " << outcome.output;
    EXPECT_NE(outcome.output.find("data.path: got here"), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("rank 1"), std::string::npos) << outcome.output;
}

// What ranks of another job in the same directory have asked for is theirs as long as they live.
TEST(RanksTest, ARunThatIsRefusedLeavesTheWatchdogFilesOfTheOneThatHoldsTheDirectory) {
    const TinyRun tiny;
    const std::string request = tiny.run + "/watchdog/request_00", answer = "/watchdog/rank_1.json";
    fs::create_directories(tiny.run + "/watchdog");
    std::ofstream(request) << "rank 0\n";
    std::ofstream(tiny.run + answer) << R"({"job": "00"})";
    const std::string train = "-np 2 " EVENKEEL_PROGRAM " " +
                              tiny.train("--set trainer.steps=1 --set parallel.tensor_parallel=2");
    {
        const RunLock lock(tiny.run);
        const Outcome refused = run_ranks(train);
        EXPECT_EQ(refused.status, 2) << refused.output;
        EXPECT_EQ(count(refused.output, "is writing to"), 1u) << refused.output;
        EXPECT_TRUE(fs::exists(request));
        EXPECT_TRUE(fs::exists(tiny.run + answer));
    }
    const Outcome taken = run_ranks(train);
    EXPECT_EQ(taken.status, 0) << taken.output;
    EXPECT_FALSE(fs::exists(request));
    EXPECT_FALSE(fs::exists(tiny.run + answer));
}

TEST(RanksTest, WrongNumberOfRanksSaysHowManyToStart) {
    const TinyRun tiny;
    const Outcome outcome =
        run_ranks("-np 3 " EVENKEEL_PROGRAM " " + tiny.train("--set parallel.tensor_parallel=2"));
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("mpirun -np 2"), std::string::npos) << outcome.output;
}

TEST(RanksTest, UsageErrorIsSaidOnce) {
    const Outcome outcome = run_ranks("-np 2 " EVENKEEL_PROGRAM " train --nonsense");
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_EQ(count(outcome.output, "--nonsense"), 1u) << outcome.output;
}

}  // namespace
}  // namespace evenkeel::testing
