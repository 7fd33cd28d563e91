#include "framework/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace evenkeel {
namespace {

TEST(PhiloxTest, MatchesThePublishedVectors) {
    // Known answers of philox4x32-10 in Random123's kat_vectors.
    using Words = std::array<std::uint32_t, 4>;
    EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
              (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(
        philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
        (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(
        philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
        (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RngTest, PurposeIsFnv1a) {
    EXPECT_EQ(purpose(""), 0xcbf29ce484222325u);
    EXPECT_EQ(purpose("a"), 0xaf63dc4c8601ec8cu);
    EXPECT_EQ(purpose("foobar"), 0x85944171f73967e8u);
}

TEST(RngTest, NumbersArePureAndDifferBySeedPurposeAndIndex) {
    const CounterRng rng(1, purpose("a"));
    EXPECT_EQ(rng.bits(5), CounterRng(1, purpose("a")).bits(5));
    EXPECT_NE(rng.bits(5), rng.bits(6));
    EXPECT_NE(rng.bits(5), rng.bits(5 + (1ull << 32)));
    EXPECT_NE(rng.bits(5), CounterRng(2, purpose("a")).bits(5));
    EXPECT_NE(rng.bits(5), CounterRng(1 + (1ull << 32), purpose("a")).bits(5));
    EXPECT_NE(rng.bits(5), CounterRng(1, purpose("b")).bits(5));
}

TEST(RngTest, UniformNumbersFillTheUnitInterval) {
    const CounterRng rng(3, purpose("uniform"));
    const int count = 100000;
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < count; ++i) {
        const double u = rng.uniform(i);
        ASSERT_TRUE(0.0 <= u && u < 1.0) << i;
        sum += u, squares += u * u;
    }
    // Four standard errors.
    EXPECT_NEAR(sum / count, 0.5, 4.0 / std::sqrt(12.0 * count));
    EXPECT_NEAR(squares / count, 1.0 / 3.0, 4.0 * std::sqrt(4.0 / 45.0 / count));
}

TEST(RngTest, NormalNumbersHaveTheNormalMomentsAndTails) {
    const CounterRng rng(3, purpose("normal"));
    const int count = 200000;
    double sum = 0.0, squares = 0.0, fourth = 0.0;
    int beyond_two = 0;
    for (int i = 0; i < count; ++i) {
        const double x = rng.normal(i);
        ASSERT_TRUE(std::isfinite(x)) << i;
        sum += x, squares += x * x, fourth += x * x * x * x;
        beyond_two += std::abs(x) > 2.0;
    }
    EXPECT_NEAR(sum / count, 0.0, 4.0 / std::sqrt(count));
    EXPECT_NEAR(squares / count, 1.0, 4.0 * std::sqrt(2.0 / count));
    EXPECT_NEAR(fourth / count, 3.0, 4.0 * std::sqrt(96.0 / count));
    EXPECT_NEAR(static_cast<double>(beyond_two) / count, 0.0455003,
                4.0 * std::sqrt(0.0434 / count));
}

TEST(RngTest, NeighboursAreUncorrelated) {
    const CounterRng rng(3, purpose("correlation"));
    const int count = 100000;
    double sum = 0.0;
    for (int i = 0; i < count; ++i) sum += rng.normal(i) * rng.normal(i + 1);
    EXPECT_NEAR(sum / count, 0.0, 4.0 / std::sqrt(count));
}

TEST(RngTest, BelowIsEven) {
    const CounterRng rng(3, purpose("below"));
    std::vector<int> counts(7);
    for (int i = 0; i < 70000; ++i) {
        const std::uint64_t value = rng.below(i, 7);
        ASSERT_LT(value, 7u);
        ++counts[value];
    }
    for (int count : counts) EXPECT_NEAR(count, 10000, 4 * 93);
    EXPECT_EQ(rng.below(0, 1), 0u);
    EXPECT_LT(rng.below(0, ~0ull), ~0ull);
}

}  // namespace
}  // namespace evenkeel
