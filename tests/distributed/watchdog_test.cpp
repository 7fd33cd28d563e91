// A rank that is stopped, slow, busy, dead, or in another operation than the others: the report names it and
// what the others wait for, every process ends, and the job's status is the watchdog's.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "tests/distributed/job.h"
#include "tests/support/temporary_directory.h"

namespace {

using evenkeel::testing::JobResult;

constexpr int kLost = 3;

std::string read(const std::string& path) {
    std::ifstream in(path);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

class WatchdogTest : public ::testing::TestWithParam<int> {
  protected:
    // A job of the program's mode; whatever happens nothing of it is left.
    JobResult run(const std::string& mode) {
        const JobResult result = evenkeel::testing::run_job(
            EVENKEEL_WATCHDOG_PROGRAM, mode + " " + watched_ + EVENKEEL_WATCHDOG_GPUS, GetParam());
        // mpirun kills what it started before it ends; it may be gone a little later.
        const pid_t bad = static_cast<pid_t>(std::atoi(read(watched_ + ".pid").c_str()));
        EXPECT_GT(bad, 0) << result.output;
        bool gone = false;
        for (int round = 0; bad > 0 && round < 100 && !gone; ++round) {
            gone = kill(bad, 0) != 0 ||
                   read("/proc/" + std::to_string(bad) + "/stat").find(") Z") != std::string::npos;
            if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        EXPECT_TRUE(gone) << "process " << bad << " is left";
        if (bad > 0 && !gone) kill(bad, SIGKILL);
        return result;
    }
    std::string report() const { return read(watched_ + "/report.txt"); }
    std::string bad() const { return std::to_string(GetParam() - 1); }
    void expect_said(const JobResult& result, const std::string& text) const {
        EXPECT_NE(report().find(text), std::string::npos)
            << "want \"" << text << "\" in the report:\n"
            << report() << "\nand all that was printed:\n"
            << result.output;
    }

    evenkeel::testing::TemporaryDirectory directory_;
    const std::string watched_ = directory_.path() + "/watchdog";
};

TEST_P(WatchdogTest, HealthyJobsWriteNothing) {
    const JobResult result = run("healthy");
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(result.output, "");
    EXPECT_EQ(report(), "");
}

TEST_P(WatchdogTest, AStoppedRankIsNamedWithWhatTheOthersWaitFor) {
    const JobResult result = run("stopped");
    EXPECT_EQ(result.status, kLost) << result.output;
    expect_said(result, "rank " + bad() + " gives no answer: process ");
    expect_said(result, " is stopped (SIGSTOP or a debugger)");
    expect_said(result, "rank 0: waits ");
    expect_said(result, "all_reduce of 20 bytes of fp32, number 4 of group tensor");
    expect_said(result, "watchdog_program.cpp:");
    EXPECT_NE(result.output.find("[watchdog] rank "), std::string::npos) << "not printed";
}

TEST_P(WatchdogTest, ARankThatIsStoppedBeforeItsFirstOperationEndsTheJob) {
    const JobResult result = run("stopped_at_the_start");
    EXPECT_EQ(result.status, kLost) << result.output;
    EXPECT_NE(result.output.find("has waited 2 s in MPI_Init: another rank is stopped"),
              std::string::npos)
        << result.output;
}

TEST_P(WatchdogTest, ARankThatIsStoppedAfterItsLastOperationIsNamed) {
    const JobResult result = run("stopped_at_the_end");
    EXPECT_EQ(result.status, kLost) << result.output;
    expect_said(result, "rank " + bad() + " gives no answer: process ");
    expect_said(result, " is stopped (SIGSTOP or a debugger)");
    expect_said(result, "in MPI_Finalize, number 1 of group job");
}

TEST_P(WatchdogTest, AKilledRankEndsTheJob) {
    const JobResult result = run("killed");
    // mpirun sees it first and says so, or the watchdog does.
    EXPECT_TRUE(result.status == 128 + SIGKILL || result.status == kLost) << result.output;
}

TEST_P(WatchdogTest, ARankThatSleepsIsSlow) {
    const JobResult result = run("slow");
    EXPECT_EQ(result.status, kLost) << result.output;
    expect_said(result, "rank " + bad() + " is slow or stuck: in no operation for ");
    expect_said(result, "the last was all_reduce of 44 bytes of fp32, number 3 of group tensor");
    expect_said(result, "rank 0: waits ");
}

TEST_P(WatchdogTest, ARankThatComputesForEverIsSlow) {
    const JobResult result = run("busy");
    EXPECT_EQ(result.status, kLost) << result.output;
    expect_said(result, "rank " + bad() + " is slow or stuck: in no operation for ");
}

TEST_P(WatchdogTest, ARankInAnotherOperationOfTheGroupIsNamedWithBothLines) {
    const JobResult result = run("other_collective");
    EXPECT_EQ(result.status, kLost) << result.output;
    expect_said(result, "ranks ask for different operations at number 4 of group tensor");
    expect_said(result, "rank " + bad() + ": all_gather of ");
    expect_said(result, "all_reduce of 20 bytes of fp32, at ");
}

TEST_P(WatchdogTest, ARankInAnOperationOfAnotherGroupIsNamed) {
    const JobResult result = run("other_group");
    EXPECT_EQ(result.status, kLost) << result.output;
    expect_said(result, "rank " + bad() + " is in another operation than rank");
    expect_said(result, "barrier, number ");
}

TEST_P(WatchdogTest, ARankWithAnotherSizeIsNamedWithBothSizes) {
    const JobResult result = run("other_size");
    EXPECT_EQ(result.status, kLost) << result.output;
    expect_said(result, "ranks ask for different operations at number 4 of group tensor");
    expect_said(result, "rank " + bad() + ": all_reduce of 28 bytes of fp32, at ");
    expect_said(result, "all_reduce of 20 bytes of fp32, at ");
}

TEST_P(WatchdogTest, WithoutADirectoryTheReportIsPrintedAlone) {
    const JobResult result = evenkeel::testing::run_job(
        EVENKEEL_WATCHDOG_PROGRAM, std::string("slow none") + EVENKEEL_WATCHDOG_GPUS, GetParam());
    EXPECT_EQ(result.status, kLost) << result.output;
    EXPECT_NE(result.output.find("rank " + bad() + " is slow or stuck: "), std::string::npos)
        << result.output;
}

INSTANTIATE_TEST_SUITE_P(Ranks, WatchdogTest, ::testing::Values(2, 4));

}  // namespace
