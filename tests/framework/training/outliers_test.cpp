#include "framework/training/outliers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace evenkeel {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// Half of the steps at 1 and half at 3: mean 2, deviation 1; gradient norms ten times that.
RecentSteps two_levels(int steps) {
    RecentSteps recent;
    for (int i = 0; i < steps; ++i) recent.add(i % 2 == 0 ? 1.0 : 3.0, i % 2 == 0 ? 10.0 : 30.0);
    return recent;
}

TEST(OutliersTest, LimitsAreTheMeanAndSoManyDeviations) {
    const UpdateLimits limits = outlier_limits(two_levels(64), 6.0);
    EXPECT_NEAR(limits.loss, 8.0, 1e-12);
    EXPECT_NEAR(limits.grad_norm, 80.0, 1e-12);
    EXPECT_TRUE(makes_update(8.0 - 1e-9, 79.0, limits));
    EXPECT_FALSE(makes_update(8.0 + 1e-9, 20.0, limits));
    EXPECT_FALSE(makes_update(2.0, 80.1, limits));
    EXPECT_TRUE(makes_update(-100.0, 0.0, limits)) << "only what is above is an outlier";
}

TEST(OutliersTest, HasNoLimitsBeforeSixtyFourStepsOrWhenItIsOff) {
    EXPECT_EQ(outlier_limits(two_levels(63), 6.0).loss, kNone);
    EXPECT_EQ(outlier_limits(two_levels(63), 6.0).grad_norm, kNone);
    EXPECT_EQ(outlier_limits(two_levels(128), 0.0).loss, kNone);
}

TEST(OutliersTest, ForgetsWhatIsOlderThanTheWindow) {
    RecentSteps recent = two_levels(500);
    for (int i = 0; i < 128; ++i) recent.add(5.0, 7.0);
    EXPECT_EQ(recent.losses.size(), 128u);
    const UpdateLimits limits = outlier_limits(recent, 6.0);
    EXPECT_NEAR(limits.loss, 5.0, 1e-6);
    EXPECT_TRUE(makes_update(5.0, 7.0, limits)) << "equal values are no outliers";
}

TEST(OutliersTest, AnOutlierDoesNotHideTheNext) {
    RecentSteps recent = two_levels(100);
    const double before = outlier_limits(recent, 6.0).loss;
    EXPECT_FALSE(recent.add_outlier());
    EXPECT_EQ(outlier_limits(recent, 6.0).loss, before);
    EXPECT_EQ(recent.outliers, 1);
    recent.add(2.0, 20.0);
    EXPECT_EQ(recent.outliers_in_row, 0);
}

TEST(OutliersTest, TakesSixtyFourInARowAsTheNewLevel) {
    RecentSteps recent = two_levels(128);
    for (int i = 1; i < 64; ++i) EXPECT_FALSE(recent.add_outlier()) << i;
    EXPECT_TRUE(recent.add_outlier());
    EXPECT_EQ(recent.outliers, 64);
    EXPECT_EQ(outlier_limits(recent, 6.0).loss, kNone);
}

TEST(OutliersTest, NumbersThatAreNotFiniteMakeNoUpdate) {
    EXPECT_FALSE(makes_update(NAN, 1.0, {}));
    EXPECT_FALSE(makes_update(1.0, INFINITY, {}));
    EXPECT_TRUE(makes_update(1e300, 1e300, {}));
}

}  // namespace
}  // namespace evenkeel
