#include "framework/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "framework/error.h"

namespace evenkeel {
namespace {

using Kind = ScheduleConfig::Kind;

ScheduleConfig make(Kind kind, double peak, double ratio, std::int64_t warmup, std::int64_t decay) {
    ScheduleConfig config;
    config.kind = kind;
    config.peak_lr = peak;
    config.final_lr_ratio = ratio;
    config.warmup_steps = warmup;
    config.decay_steps = decay;
    return config;
}

TEST(ScheduleTest, WarmupIsLinearForEveryKind) {
    for (Kind kind : {Kind::kCosine, Kind::kWarmupStableDecay, Kind::kConstant}) {
        const ScheduleConfig config = make(kind, 8.0, 0.1, 4, 2);
        EXPECT_DOUBLE_EQ(learning_rate(config, 0, 20), 2.0);
        EXPECT_DOUBLE_EQ(learning_rate(config, 1, 20), 4.0);
        EXPECT_DOUBLE_EQ(learning_rate(config, 2, 20), 6.0);
        EXPECT_DOUBLE_EQ(learning_rate(config, 3, 20), 8.0);
    }
}

TEST(ScheduleTest, CosineGoesFromPeakToFinal) {
    // Warm-up ends at step 1; four steps later the cosine is through.
    const ScheduleConfig config = make(Kind::kCosine, 1.0, 0.2, 2, 0);
    EXPECT_DOUBLE_EQ(learning_rate(config, 1, 6), 1.0);
    EXPECT_NEAR(learning_rate(config, 2, 6), 0.6 + 0.4 * std::sqrt(0.5), 1e-15);
    EXPECT_NEAR(learning_rate(config, 3, 6), 0.6, 1e-15);
    EXPECT_NEAR(learning_rate(config, 4, 6), 0.6 - 0.4 * std::sqrt(0.5), 1e-15);
    EXPECT_DOUBLE_EQ(learning_rate(config, 5, 6), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(config, 6, 6), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(config, 1000000, 6), 0.2);
}

TEST(ScheduleTest, StableThenLinearDecay) {
    const ScheduleConfig config = make(Kind::kWarmupStableDecay, 1.0, 0.0, 2, 4);
    const double want[] = {0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0};
    for (std::int64_t step = 0; step < 11; ++step) {
        EXPECT_DOUBLE_EQ(learning_rate(config, step, 10), want[step]) << "step " << step;
    }
}

TEST(ScheduleTest, DecayLongerThanTheRunStartsAfterTheWarmup) {
    const ScheduleConfig config = make(Kind::kWarmupStableDecay, 1.0, 0.0, 2, 100);
    const double want[] = {0.5, 1.0, 0.75, 0.5, 0.25, 0.0};
    for (std::int64_t step = 0; step < 6; ++step) {
        EXPECT_DOUBLE_EQ(learning_rate(config, step, 6), want[step]) << "step " << step;
    }
}

TEST(ScheduleTest, NoDecayStepsMeansNoDecay) {
    const ScheduleConfig config = make(Kind::kWarmupStableDecay, 1.0, 0.0, 0, 0);
    EXPECT_DOUBLE_EQ(learning_rate(config, 9, 10), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate(make(Kind::kConstant, 1.0, 0.0, 0, 5), 9, 10), 1.0);
}

TEST(ScheduleTest, WithoutWarmupTheFirstStepHasThePeak) {
    const ScheduleConfig config = make(Kind::kCosine, 1.0, 0.5, 0, 0);
    EXPECT_DOUBLE_EQ(learning_rate(config, 0, 3), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate(config, 1, 3), 0.75);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2, 3), 0.5);
}

TEST(ScheduleTest, WarmupAsLongAsTheRunOrLonger) {
    for (Kind kind : {Kind::kCosine, Kind::kWarmupStableDecay}) {
        const ScheduleConfig config = make(kind, 4.0, 0.5, 4, 2);
        EXPECT_DOUBLE_EQ(learning_rate(config, 3, 4), 4.0);
        EXPECT_DOUBLE_EQ(learning_rate(config, 1, 2), 2.0);
    }
}

TEST(ScheduleTest, OneStep) {
    for (Kind kind : {Kind::kCosine, Kind::kWarmupStableDecay, Kind::kConstant}) {
        EXPECT_DOUBLE_EQ(learning_rate(make(kind, 2.0, 0.5, 0, 1), 0, 1), 2.0);
        EXPECT_DOUBLE_EQ(learning_rate(make(kind, 2.0, 0.5, 1, 1), 0, 1), 2.0);
    }
}

TEST(ScheduleTest, RejectsValuesOutOfRange) {
    const auto code = [](const ScheduleConfig& config) {
        try {
            config.validate();
        } catch (const Error& e) {
            return e.code();
        }
        return ErrorCode::kInternal;
    };
    EXPECT_EQ(code(make(Kind::kCosine, 0.0, 0.1, 0, 0)), ErrorCode::kConfig);
    EXPECT_EQ(code(make(Kind::kCosine, NAN, 0.1, 0, 0)), ErrorCode::kConfig);
    EXPECT_EQ(code(make(Kind::kCosine, INFINITY, 0.1, 0, 0)), ErrorCode::kConfig);
    EXPECT_EQ(code(make(Kind::kCosine, 1.0, 1.5, 0, 0)), ErrorCode::kConfig);
    EXPECT_EQ(code(make(Kind::kCosine, 1.0, -0.1, 0, 0)), ErrorCode::kConfig);
    EXPECT_EQ(code(make(Kind::kCosine, 1.0, 0.1, -1, 0)), ErrorCode::kConfig);
    EXPECT_EQ(code(make(Kind::kCosine, 1.0, 0.1, 0, -1)), ErrorCode::kConfig);
    EXPECT_NO_THROW(make(Kind::kCosine, 1.0, 0.0, 0, 0).validate());
    EXPECT_THROW(learning_rate(ScheduleConfig{}, 0, 0), Error);
    EXPECT_THROW(learning_rate(ScheduleConfig{}, -1, 10), Error);
}

}  // namespace
}  // namespace evenkeel
