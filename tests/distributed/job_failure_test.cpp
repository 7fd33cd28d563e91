// When one rank fails, all end, with that rank's message and status.
#include <gtest/gtest.h>

#include <string>

#include "tests/distributed/job.h"

namespace {

using Result = evenkeel::testing::JobResult;

Result run(const std::string& mode, int ranks) {
    return evenkeel::testing::run_job(EVENKEEL_FAILING_PROGRAM, mode, ranks);
}

TEST(JobFailureTest, HealthyJobsEndWithZero) {
    const Result result = run("healthy", 3);
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(result.output, "");
}

TEST(JobFailureTest, AnErrorOnOneRankEndsAllWithItsMessageAndStatus) {
    const Result usage = run("throws", 4);
    EXPECT_EQ(usage.status, 2) << usage.output;
    EXPECT_EQ(usage.count("rank 1: [test] heads: got 3, want 4\n"), 1u) << usage.output;
    const Result io = run("io", 2);
    EXPECT_EQ(io.status, 1) << io.output;
    EXPECT_EQ(io.count("rank 1: [test] no such file\n"), 1u) << io.output;
}

TEST(JobFailureTest, WhatAllRanksFindWrongIsSaidOnce) {
    const Result result = run("all_throw", 4);
    EXPECT_EQ(result.status, 2) << result.output;
    EXPECT_EQ(result.count("rank 0: [ProcessGrid] tensor_parallel = 16, but 4 ranks were started: "
                           "use mpirun -np 16"),
              1u)
        << result.output;
    EXPECT_EQ(result.count("[ProcessGrid]"), 1u) << result.output;
}

TEST(JobFailureTest, AnErrorThatLeavesTheSessionEndsTheJob) {
    const Result result = run("escapes", 2);
    EXPECT_EQ(result.status, 1) << result.output;
}

TEST(JobFailureTest, TheConfiguredTimeoutHoldsInEveryGroup) {
    const Result result = run("grid_timeout", 2);
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_EQ(result.count("rank 0 waited 0.5 s for rank 1"), 1u) << result.output;
}

TEST(JobFailureTest, RanksAreNamedByTheirNumbersInTheJob) {
    const Result result = run("part_timeout", 4);
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_EQ(result.count("group of 2 ranks: rank 2 waited 0.5 s for rank 3"), 1u)
        << result.output;
}

TEST(JobFailureTest, WaitingForARankThatNeverArrivesRunsOutOfTime) {
    const Result result = run("never_arrives", 3);
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_GE(result.count(
                  "[all_reduce] operation 1 of a group of 3 ranks: rank 0 waited 2 s for rank 1;"),
              1u)
        << result.output;
}

TEST(JobFailureTest, AfterATimeoutTheGroupRefusesToGoOn) {
    const Result result = run("timeout_twice", 2);
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_EQ(
        result.count("first: [all_reduce] operation 1 of a group of 2 ranks: rank 0 waited 2 s"),
        1u)
        << result.output;
    EXPECT_EQ(result.count("rank 0: [barrier] an earlier operation between ranks has failed"), 1u)
        << result.output;
}

TEST(JobFailureTest, ARankThatIsKilledOrExitsEndsTheJob) {
    EXPECT_EQ(run("killed", 2).status, 128 + 6);
    EXPECT_EQ(run("exits", 2).status, 3);
}

TEST(JobFailureTest, DifferentSizesAreAnErrorNotGarbage) {
    const Result result = run("sizes_differ", 2);
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_GE(result.count("[all_reduce] between ranks "), 1u) << result.output;
    EXPECT_GE(result.count("do both call the same operations with the same sizes?"), 1u)
        << result.output;
}

}  // namespace
