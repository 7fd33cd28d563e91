// launch/supervise.sh with commands that stand for training runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/launch/command_line.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel::testing {
namespace {

class SuperviseTest : public ::testing::Test {
  protected:
    SuperviseTest() { std::filesystem::create_directories(files_.file("run/checkpoints")); }
    // With a script in place of mpirun; it finds the run's directory in $RUN and the attempt's number in $N.
    std::string supervise(const std::string& script, const std::string& options = "--wait 0") {
        const std::string command = files_.write(
            "command", "RUN=" + files_.file("run") + "\necho x >>" + files_.file("count") +
                           "\nN=$(wc -l <" + files_.file("count") + ")\n" + script + "\n");
        return std::string(EVENKEEL_SOURCE_DIR) + "/launch/supervise.sh " + options + " " +
               files_.file("run") + " bash " + command;
    }
    Outcome run(const std::string& script, const std::string& options = "--wait 0") {
        return run_command(supervise(script, options));
    }
    TemporaryDirectory files_;
};

void expect_end(const Outcome& outcome, int status, int attempts, const std::string& words) {
    EXPECT_EQ(outcome.status, status) << outcome.output;
    EXPECT_EQ(count_of("supervise: attempt ", outcome.output), attempts) << outcome.output;
    EXPECT_EQ(count_of(words, outcome.output), 1) << outcome.output;
}

TEST_F(SuperviseTest, EndsWithWhatNeedsNoOtherAttempt) {
    expect_end(run("exit 0"), 0, 1, "the run is done");
    expect_end(run("exit 1"), 1, 1, "no new checkpoint; giving up");
    // Whatever the status before was.
    expect_end(run("[ $N = 4 ] || exit 137\nexit 1"), 1, 2, "giving up: it would fail");
    expect_end(run("exit 2"), 2, 1, "a mistake of usage or configuration");
    expect_end(run("exit 4"), 4, 1, "a signal asked it to end");
}

TEST_F(SuperviseTest, WatchesTheDirectoryThatTheCommandTrainsIn) {
    const std::string other = files_.file("other"), same = files_.file("./run/");
    for (const char* set : {" --set trainer.run_dir=", " --set=trainer.run_dir="}) {
        const std::string command = supervise("exit 0");
        const Outcome refused = run_command(command + set + other);
        expect_end(refused, 2, 0, "but the command trains in trainer.run_dir=" + other);
        EXPECT_FALSE(std::filesystem::exists(files_.file("count"))) << "it was started";
        // The last one counts.
        expect_end(run_command(command + set + other + set + same), 0, 1, "the run is done");
        std::filesystem::remove(files_.file("count"));
    }
    std::filesystem::remove_all(files_.file("run"));
    expect_end(run("exit 0"), 0, 1,
               "no new checkpoint and no " + files_.file("run") + "/checkpoints; the run is done");
}

TEST_F(SuperviseTest, ACommandThatCannotBeStartedIsTriedOnce) {
    const std::string start = std::string(EVENKEEL_SOURCE_DIR) + "/launch/supervise.sh --wait 0 " +
                              files_.file("run") + " ";
    expect_end(run_command(start + files_.file("nothing")), 127, 1, "cannot be started");
    expect_end(run_command(start + files_.write("text", "x")), 126, 1, "cannot be started");
}

TEST_F(SuperviseTest, StartsAgainAsLongAsThereAreNewCheckpoints) {
    expect_end(run("[ $N -lt 6 ] || exit 0\nmkdir $RUN/checkpoints/step_0000000$N\n"
                   "[ $N != 2 ] || exit 1\nexit 137"),
               0, 6, "the run is done");
}

TEST_F(SuperviseTest, GivesUpAfterFailuresInARow) {
    expect_end(run("exit 3"), 3, 3, "giving up after 3 failures in a row");
    // The second attempt's checkpoint is the last; what is unfinished or set aside is none.
    std::filesystem::remove(files_.file("count"));
    expect_end(run("[ $N != 2 ] || mkdir $RUN/checkpoints/step_00000007\n"
                   "mkdir $RUN/checkpoints/step_0000001$N.tmp\nexit 137",
                   "--wait 0 --failures 2"),
               137, 4, "giving up after 2 failures in a row");
}

TEST_F(SuperviseTest, ASetAsideCheckpointIsNoProgress) {
    expect_end(run("mkdir -p $RUN/checkpoints/step_00000007\n"
                   "[ $N = 1 ] || mv $RUN/checkpoints/step_00000007 $RUN/checkpoints/a.$N\n"
                   "exit 137",
                   "--wait 0 --failures 1"),
               137, 2, "giving up after 1 failures in a row");
}

TEST_F(SuperviseTest, CheckpointsThatCannotBeReadAreNotTakenForNone) {
    const std::string checkpoints = files_.file("run/checkpoints");
    const std::string words = "supervise: cannot see whether there is progress: find: ";
    const std::string spoil = "rmdir $RUN/checkpoints\nln -s checkpoints $RUN/checkpoints\n";
    expect_end(run(spoil + "exit 137"), 137, 1, words);
    EXPECT_EQ(run_command("wc -l <" + files_.file("count")).output.substr(0, 1), "1");
    // Before the first attempt, too.
    Outcome outcome = run("exit 0");
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_EQ(count_of(words, outcome.output), 1) << outcome.output;
    EXPECT_EQ(count_of("attempt", outcome.output), 0) << outcome.output;
    // What is over needs no progress.
    std::filesystem::remove(checkpoints);
    std::filesystem::create_directory(checkpoints);
    expect_end(run(spoil + "exit 0"), 0, 1, "the run is done");
    // A run that has not begun has no directory.
    std::filesystem::remove_all(files_.file("run"));
    expect_end(run("exit 2"), 2, 1, "run/checkpoints; a mistake of usage or configuration");
}

TEST_F(SuperviseTest, AnErrorThatIsNotFindsOwnIsNoNameOfACheckpoint) {
    const std::string bin = files_.file("bin");
    std::filesystem::create_directory(bin);
    std::ofstream(bin + "/find") << "#!/bin/sh\necho it broke >&2\nexit 9\n";
    std::filesystem::permissions(bin + "/find", std::filesystem::perms::owner_all);
    const Outcome outcome =
        run_command("PATH=" + bin + ":$PATH " EVENKEEL_SOURCE_DIR "/launch/supervise.sh " +
                    files_.file("run") + " true 2>&1");
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_EQ(count_of("cannot see whether there is progress: it broke", outcome.output), 1)
        << outcome.output;
}

TEST_F(SuperviseTest, AsksTheRunToEndAndStartsItNoMore) {
    const std::string script =
        "trap \"echo heard it; exit 4\" USR1\ntouch $RUN/up\n"
        "for i in $(seq 300); do sleep 0.1; done";
    for (const char* signal : {"USR1", "TERM"}) {
        std::filesystem::remove(files_.file("run/up"));
        const Outcome outcome =
            run_command(supervise(script) + " & p=$!; while [ ! -e " + files_.file("run/up") +
                        " ]; do sleep 0.05; done; kill -" + signal + " $p; wait $p");
        expect_end(outcome, 4, 1, "heard it");
    }
}

TEST_F(SuperviseTest, RefusesACommandThatWouldGoBackAtEveryStart) {
    const Outcome outcome = run_command(std::string(EVENKEEL_SOURCE_DIR) + "/launch/supervise.sh " +
                                        files_.file("run") + " evenkeel train --rewind 5");
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("--rewind"), std::string::npos) << outcome.output;
}

TEST_F(SuperviseTest, ItsHelpIsTheTextAtItsTop) {
    const Outcome outcome =
        run_command(std::string(EVENKEEL_SOURCE_DIR) + "/launch/supervise.sh --help");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(outcome.output.find("Starts a training run again"), 0u) << outcome.output;
    EXPECT_NE(outcome.output.find("--most S"), std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find("set -euo"), std::string::npos) << outcome.output;
}

TEST_F(SuperviseTest, IsCleanToShellcheck) {
    if (run_command("command -v shellcheck").status != 0) GTEST_SKIP() << "no shellcheck";
    const Outcome outcome =
        run_command("shellcheck " + std::string(EVENKEEL_SOURCE_DIR) + "/launch/supervise.sh");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
}

}  // namespace
}  // namespace evenkeel::testing
