// Runs under mpirun that a signal ends, and that leave out steps.
#include <gtest/gtest.h>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "tests/launch/command_line.h"
#include "tests/support/run_files.h"

namespace evenkeel::testing {
namespace {

using Json = nlohmann::json;

const std::string kMpirun =
    "OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    "OMPI_MCA_rmaps_base_oversubscribe=1 " EVENKEEL_MPIEXEC " -np 2 " EVENKEEL_PROGRAM " ";
const std::string kSettings =
    "--set trainer.steps=100000 --set trainer.log_interval=5 --set model.type=fp32 "
    "--set trainer.checkpoint_keep=0 --set trainer.skip_outliers_sigma=4 --set trainer.run_dir=";

// Starts the command, sends it a signal once the run has its first record, and waits.
Outcome signalled(const std::string& command, const std::string& run, const std::string& signal) {
    return run_command(command + " & p=$!; while [ ! -s " + run +
                       "/metrics.jsonl ] && kill -0 $p; do sleep 0.05; done; kill -" + signal +
                       " $p; wait $p");
}

class StopRanksTest : public ::testing::TestWithParam<const char*> {};

TEST_P(StopRanksTest, ASignalToMpirunEndsAllRanksAfterACheckpointFromWhichTheRunGoesOnBitForBit) {
    const TinyRun tiny;
    const std::string parallel = std::string(" --set parallel.tensor_parallel=") + GetParam() +
                                 " --set trainer.micro_batch_size=1";
    const std::string train = kMpirun + tiny.train(kSettings + tiny.run + parallel);
    const Outcome stopped = signalled(train, tiny.run, "USR1");
    ASSERT_EQ(stopped.status, 4) << stopped.output;
    EXPECT_EQ(count_of("ended by SIGUSR1; checkpoint  ", stopped.output), 1) << stopped.output;
    EXPECT_EQ(count_of("stopped at step ", stopped.output), 1) << stopped.output;
    EXPECT_EQ(count_of("trainer.resume=true", stopped.output), 1) << stopped.output;
    const std::string newest = newest_checkpoint(tiny.run);
    const std::int64_t step = Json::parse(read_file(newest + "/trainer.json"))["step"];

    const std::string stop = concat(" --set trainer.stop_at_step=", step + 2);
    const Outcome resumed = run_command(train + stop + " --set trainer.resume=true", 110);
    ASSERT_EQ(resumed.status, 0) << resumed.output;
    const std::string whole = tiny.directory.file("whole");
    const Outcome straight =
        run_command(kMpirun + tiny.train(kSettings + whole + parallel) + stop, 110);
    ASSERT_EQ(straight.status, 0) << straight.output;
    EXPECT_TRUE(same_files(newest_checkpoint(tiny.run), newest_checkpoint(whole)));
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, StopRanksTest, ::testing::Values("1", "2"));

TEST(SkipRanksTest, RanksLeaveOutTheSameStepsAndGoOnWithTheSameWindow) {
    const TinyRun tiny;
    const std::string settings =
        // Hardly learning, so that losses scatter about a level.
        "--set schedule.peak_lr=1e-6 --set trainer.steps=90 --set trainer.log_interval=1 --set "
        "trainer.skip_outliers_sigma=0.7 "
        "--set trainer.skip_batches=3-5,80 --set parallel.tensor_parallel=2 "
        "--set trainer.checkpoint_keep=0 --set model.type=fp32 --set trainer.run_dir=";
    const std::string whole = tiny.directory.file("whole");
    Outcome outcome = run_command(kMpirun + tiny.train(settings + whole), 110);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_GT(count_of("the step is skipped (trainer.skip_outliers_sigma)", outcome.output), 0);
    EXPECT_EQ(count_of("step 3: 3 batches before its own are left out", outcome.output), 1)
        << outcome.output;
    for (const char* stop : {"--set trainer.stop_at_step=75", "--set trainer.resume=true"}) {
        outcome = run_command(kMpirun + tiny.train(settings + tiny.run + " " + stop), 110);
        ASSERT_EQ(outcome.status, 0) << outcome.output;
    }
    EXPECT_TRUE(same_files(newest_checkpoint(tiny.run), newest_checkpoint(whole)));

    // Back to step 75, past a few batches.
    outcome = run_command(kMpirun + tiny.train(settings + tiny.run +
                                               " --rewind 80 --set trainer.skip_batches=3-5,78-85"),
                          110);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(count_of("step_00000090.rewound", outcome.output), 1) << outcome.output;
    EXPECT_EQ(count_of("resuming from " + tiny.run + "/checkpoints/step_00000075", outcome.output),
              1)
        << outcome.output;
}

}  // namespace
}  // namespace evenkeel::testing
