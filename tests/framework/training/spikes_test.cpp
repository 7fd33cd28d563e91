#include "framework/training/spikes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace evenkeel {
namespace {

TEST(DeviationTest, ComparesWithTheValuesBefore) {
    Deviation deviation(4, 2, 6.0);
    EXPECT_EQ(deviation.add(1.0), 0.0);
    EXPECT_EQ(deviation.add(3.0), 0.0);
    EXPECT_DOUBLE_EQ(deviation.add(5.0), 3.0);  // mean 2, deviation 1
    // 1 3 5: mean 3, variance 8/3
    EXPECT_NEAR(deviation.add(0.0), -3.0 / std::sqrt(8.0 / 3.0), 1e-12);
    deviation.add(4.0);  // 3 5 0 4 stay
    EXPECT_NEAR(deviation.add(3.0), 0.0, 1e-12);
}

TEST(DeviationTest, KeepsSpikesOutOfItsWindow) {
    Deviation deviation(128, 64, 6.0);
    for (int i = 0; i < 64; ++i) EXPECT_EQ(deviation.add(i % 2 == 0 ? 1.0 : 3.0), 0.0);
    EXPECT_NEAR(deviation.add(1002.0), 1000.0, 1e-9);
    EXPECT_NEAR(deviation.add(1002.0), 1000.0, 1e-9) << "the first one hides nothing";
    EXPECT_EQ(deviation.add(INFINITY), INFINITY);
    EXPECT_EQ(deviation.add(std::numeric_limits<double>::quiet_NaN()), INFINITY);
}

TEST(DeviationTest, AcceptsANewLevelInTheEnd) {
    Deviation deviation(8, 4, 6.0);
    for (int i = 0; i < 8; ++i) deviation.add(i % 2 == 0 ? 1.0 : 3.0);
    int far = 0;
    for (int i = 0; i < 20; ++i) far += deviation.add(i % 2 == 0 ? 101.0 : 103.0) > 6.0 ? 1 : 0;
    EXPECT_EQ(far, 4) << "half of the window";
}

// A healthy run's lone outliers, and a blow-up that lasts.
TEST(DeviationTest, LastsWhereThreeInARowAreFarAway) {
    Deviation deviation(128, 64, 6.0);
    const auto usual = [&](int steps) {
        double most = 0.0;
        for (int i = 0; i < steps; ++i) {
            deviation.add(i % 2 == 0 ? 1.0 : 3.0);  // mean 2, deviation 1
            most = std::max(most, deviation.lasting());
        }
        return most;
    };
    EXPECT_EQ(usual(64), 0.0);
    deviation.add(20.0);
    EXPECT_LT(deviation.lasting(), 2.0);
    deviation.add(30.0);
    EXPECT_LT(deviation.lasting(), 2.0) << "two in a row";
    EXPECT_LT(usual(2), 2.0);
    deviation.add(20.0);
    deviation.add(12.0);
    EXPECT_LT(deviation.lasting(), 6.0);
    deviation.add(22.0);
    EXPECT_NEAR(deviation.lasting(), 10.0, 1e-9) << "the least of the three";
    deviation.add(INFINITY);
    EXPECT_NEAR(deviation.lasting(), 10.0, 1e-9);
    deviation.add(1.0);
    EXPECT_LT(deviation.lasting(), 0.0) << "over";
}

TEST(SpikeScoreTest, IsTheShareOfFarValues) {
    SpikeScore score;
    for (int i = 0; i < 64; ++i) score.add(i % 2 == 0 ? 1.0 : 3.0);
    EXPECT_EQ(score.percent(), 0.0);
    score.add(100.0);
    EXPECT_EQ(score.percent(), 100.0);
    for (int i = 0; i < 199; ++i) score.add(2.0);
    EXPECT_NEAR(score.percent(), 0.5, 1e-12) << "one of 200";
    score.add(std::numeric_limits<double>::quiet_NaN());
    EXPECT_NEAR(score.percent(), 200.0 / 201.0, 1e-12);
}

}  // namespace
}  // namespace evenkeel
