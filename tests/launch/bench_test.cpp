// The arithmetic of the measurements, and that their figures come out; what they are means nothing at this size.
#include "launch/bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "tests/launch/command_line.h"

namespace evenkeel {
namespace {

using bench::Rounds;
using bench::StepBench;

int count(Rounds& rounds) {
    int done = 0;
    while (rounds.next()) {
        ++done;
        EXPECT_EQ(rounds.number(), done);
    }
    return done;
}

TEST(BenchTest, RoundsAreAsManyAsWantedWhereThereIsTime) {
    std::ostringstream progress;
    Rounds rounds("copy", 5, 60.0, nullptr, &progress);
    EXPECT_EQ(count(rounds), 5);
    EXPECT_EQ(progress.str(), "") << "speaks though it took no time";
}

TEST(BenchTest, RoundsEndEarlyWithAWordWhereThereIsNoTime) {
    std::ostringstream progress;
    Rounds rounds("copy", 5, 0.0, nullptr, &progress);
    EXPECT_EQ(count(rounds), 1) << "there is one at least";
    EXPECT_EQ(progress.str(), "  copy: ends after 1 of 5 rounds, 0 s\n");
}

TEST(BenchTest, SharesAreTheMedianAndTheMiddleHalfOfTheRounds) {
    // Ratios 1, 2, 3, 4, 9 out of order, doubled; a quarter lies below the second.
    const bench::Share share = bench::share_of_rounds(
        bench::ratios_of({9, 2, 6, 16, 9}, {1, 2, 3, 4, 3}), "of it", 0.5, true, 2.0);
    // 9, 1, 2, 4, 3, sorted 1 2 3 4 9.
    EXPECT_DOUBLE_EQ(share.ratio, 6.0);
    EXPECT_DOUBLE_EQ(share.low, 4.0);
    EXPECT_DOUBLE_EQ(share.high, 8.0);
    EXPECT_EQ(share.rounds, 5);
    EXPECT_TRUE(share.at_most);
    EXPECT_DOUBLE_EQ(bench::median({4, 1, 3, 2}), 2.5);
}

void expect_lines(const bench::Lines& lines, const std::vector<std::string>& beginnings) {
    ASSERT_GE(lines.size(), beginnings.size());
    for (std::size_t i = 0; i < beginnings.size(); ++i) {
        EXPECT_EQ(lines[i].name.substr(0, beginnings[i].size()), beginnings[i]);
        EXPECT_TRUE(std::isfinite(lines[i].value)) << lines[i].name;
        for (const bench::Share& share : lines[i].shares) {
            EXPECT_TRUE(std::isfinite(share.ratio)) << lines[i].name << ": " << share.of;
            EXPECT_LE(share.low, share.high) << lines[i].name << ": " << share.of;
        }
    }
}

constexpr StepBench kTiny{64, 1, 16, 1, 2, 20.0};

TEST(BenchTest, WritingACheckpointBesideStepsIsMeasured) {
    const bench::Lines lines = bench::measure_checkpoint(kTiny);
    expect_lines(lines, {"step without a checkpoint (C=64, 1 layers, T=16, B=1)",
                         "checkpoint, its size", "  copying", "  writing with nothing beside",
                         "steps beside which it is written", "what it adds to each of these",
                         "what it adds to the first of these", "what it adds to all of these"});
    const bench::Share& goal = lines[5].shares.at(0);
    EXPECT_EQ(goal.goal, 0.03);
    EXPECT_TRUE(goal.at_most);
    EXPECT_EQ(goal.rounds, 2);
}

TEST(BenchTest, WhatBackwardMakesAgainIsMeasured) {
    const bench::Lines lines = bench::measure_recompute(kTiny);
    expect_lines(lines, {"recompute none", "peak of memory, recompute none",
                         "recompute elementwise", "peak of memory, recompute elementwise",
                         "recompute attention", "peak of memory, recompute attention",
                         "recompute full", "peak of memory, recompute full"});
    EXPECT_LE(lines[7].shares.at(0).ratio, 1.0) << "memory of full against none";
}

TEST(BenchTest, EachOperationHasItsPartOfTheStep) {
    const bench::Lines lines = bench::measure_ops(kTiny);
    expect_lines(lines, {"whole step (C=64, 1 layers, T=16, B=1)", "  products, forward",
                         "  products, gradients of inputs", "  products, gradients of weights",
                         "  attention, forward", "  attention, backward",
                         "  QK-norm + RoPE, forward", "  QK-norm + RoPE, backward",
                         "  RMSNorm, forward", "  RMSNorm, backward", "  residual sum",
                         "  SwiGLU, forward", "  SwiGLU, backward", "  AdamW", "  all of these"});
    ASSERT_EQ(lines.size(), 15u);
    double sum = 0.0;
    for (std::size_t i = 1; i + 1 < lines.size(); ++i) {
        EXPECT_EQ(lines[i].shares.at(0).of, "of the step");
        EXPECT_GT(lines[i].shares.at(1).ratio, 0.0) << lines[i].name;
        sum += lines[i].value;
    }
    // Medians of two rounds are means, which add up.
    EXPECT_NEAR(lines.back().value, sum, 1e-9 * sum);
}

TEST(BenchTest, GrowthIsAgainstTheSmallest) {
    const bench::Lines lines = bench::measure_growth({64, 1, 16, 1, 1, 20.0});
    expect_lines(lines, {"training step, B=1", "training step, B=2", "training step, B=4",
                         "training step, B=8", "attention forward, T=1024"});
    EXPECT_DOUBLE_EQ(lines[0].shares.at(0).ratio, 1.0);
    EXPECT_DOUBLE_EQ(lines[4].shares.at(0).ratio, 1.0);
}

}  // namespace
}  // namespace evenkeel
