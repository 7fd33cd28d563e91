// When one rank fails between GPUs, all end within the time-out, with a message that says what was asked
// for. Bad assignments of GPUs to ranks are said once, before NCCL could hang on them.
#include <gtest/gtest.h>

#include <string>

#include "tests/distributed/job.h"

namespace {

using Result = evenkeel::testing::JobResult;

Result run(const std::string& mode, int ranks, const std::string& environment = "") {
    return evenkeel::testing::run_job(EVENKEEL_FAILING_PROGRAM, mode, ranks, environment);
}

TEST(GpuJobFailureTest, HealthyJobsEndWithZero) {
    for (const char* seed : {"EVENKEEL_EMULATOR_SEED=0", "EVENKEEL_EMULATOR_SEED=7"}) {
        const Result result = run("healthy", 3, seed);
        EXPECT_EQ(result.status, 0) << result.output;
        EXPECT_EQ(result.output, "");
    }
}

TEST(GpuJobFailureTest, ARankThatDiesInsideACollectiveEndsTheJob) {
    EXPECT_EQ(run("killed", 2).status, 128 + 9);
    EXPECT_EQ(run("exits", 3).status, 3);
}

TEST(GpuJobFailureTest, AnErrorOnOneRankEndsAllWithItsMessageAndStatus) {
    const Result result = run("throws", 2);
    EXPECT_EQ(result.status, 2) << result.output;
    EXPECT_EQ(result.count("rank 1: [test] heads: got 3, want 4\n"), 1u) << result.output;
}

TEST(GpuJobFailureTest, WaitingForARankThatNeverArrivesRunsOutOfTime) {
    const Result result = run("slow", 2);
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_EQ(result.count("rank 0: [all_reduce] operation 2 of 4000 bytes between the GPUs of 2 "
                           "ranks (0, 1): rank 0 waited 0.5"),
              1u)
        << result.output;
}

TEST(GpuJobFailureTest, TheEndOfAGroupWaitsNoLongerThanAnOperation) {
    const Result result = run("at_the_end", 2);
    EXPECT_NE(result.status, 0) << result.output;
    EXPECT_NE(result.status, 124) << result.output;
}

TEST(GpuJobFailureTest, OperationsInAnotherOrderOnOneRankAreNamedOnBothSides) {
    const Result order = run("order", 2);
    EXPECT_EQ(order.status, 1) << order.output;
    EXPECT_GE(order.count("NCCL: calls do not match: rank 0 all-reduce number 2 of 1000 fp32, sum; "
                          "rank 1 all-reduce number 2 of 1000 bf16, sum"),
              1u)
        << order.output;
    EXPECT_GE(order.count("[all_reduce] operation 2 of "), 1u) << order.output;
    const Result kinds = run("kinds", 3);
    EXPECT_EQ(kinds.status, 1) << kinds.output;
    EXPECT_GE(kinds.count("rank 1 broadcast number 2 of 1000 fp32 from 0"), 1u) << kinds.output;
    const Result sizes = run("sizes", 2);
    EXPECT_EQ(sizes.status, 1) << sizes.output;
    EXPECT_GE(sizes.count("rank 1 all-reduce number 2 of 10 fp32, sum"), 1u) << sizes.output;
}

TEST(GpuJobFailureTest, AFailureInsideNcclReachesAllRanks) {
    const Result result = run("healthy", 3, "EVENKEEL_EMULATED_NCCL_FAILS=1:2");
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_GE(result.count("on rank 1: unhandled system error") +
                  result.count("(rank 1 of the communicator has failed)"),
              1u)
        << result.output;
}

TEST(GpuJobFailureTest, AfterAFailureGroupsRefuseToGoOn) {
    const Result result = run("twice", 2);
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_GE(result.count("first: [all_reduce] operation 2 of "), 1u) << result.output;
    EXPECT_GE(result.count("[all_reduce] an earlier operation between GPUs has failed"), 1u)
        << result.output;
}

TEST(GpuJobFailureTest, TwoRanksOnOneGpuAreRefusedOnce) {
    const Result one = run("healthy", 2, "EVENKEEL_EMULATED_GPUS=1");
    EXPECT_EQ(one.status, 1) << one.output;
    EXPECT_EQ(one.count("rank 0: [assign_gpu] ranks 0 and 1 on "), 1u) << one.output;
    EXPECT_EQ(one.count("parallel.communication=staged lets ranks share one"), 1u) << one.output;
    const Result few = run("healthy", 3, "EVENKEEL_EMULATED_GPUS=2");
    EXPECT_EQ(few.status, 1) << few.output;
    EXPECT_EQ(few.count("rank 0: [assign_gpu] 3 ranks on "), 1u) << few.output;
    EXPECT_EQ(few.count("which has only 2 GPUs: "), 1u) << few.output;
}

TEST(GpuJobFailureTest, RanksShareAGpuThroughTheMemoryOfTheCpu) {
    const Result result = run("staged", 3, "EVENKEEL_EMULATED_GPUS=2");
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(result.output, "");
}

TEST(GpuJobFailureTest, WhatIsTooOldOrMissingIsSaidOnce) {
    const Result driver = run("healthy", 2, "EVENKEEL_EMULATED_GPU_STATE=old_driver");
    EXPECT_EQ(driver.status, 1) << driver.output;
    EXPECT_EQ(driver.count("the NVIDIA driver is too old for this build"), 1u) << driver.output;
    const Result none = run("healthy", 2, "EVENKEEL_EMULATED_GPU_STATE=no_device");
    EXPECT_EQ(none.count("the NVIDIA driver finds no GPU"), 1u) << none.output;
    const Result nccl = run("healthy", 2, "EVENKEEL_EMULATED_NCCL_VERSION=21210");
    EXPECT_EQ(nccl.status, 1) << nccl.output;
    EXPECT_EQ(nccl.count("NCCL is too old: got 2.12.10, want 2.14 or later"), 1u) << nccl.output;
    const Result other = run("healthy", 2, "EVENKEEL_EMULATED_NCCL_VERSION=30100");
    EXPECT_EQ(other.count("got 3.1.0, want 2.x"), 1u) << other.output;
}

TEST(GpuJobFailureTest, OneStreamKeepsTheOrderWhereNcclDoesNot) {
    const Result result = run("healthy", 2, "EVENKEEL_EMULATED_NCCL_VERSION=21400");
    EXPECT_EQ(result.status, 0) << result.output;
}

}  // namespace
