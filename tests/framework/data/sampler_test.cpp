#include "framework/data/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "framework/error.h"

namespace evenkeel {
namespace {

TEST(SamplerTest, EveryEpochIsAPermutation) {
    for (std::int64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 100, 255, 256, 257, 1000, 4097}) {
        const Sampler sampler(n, 42);
        for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
            std::vector<bool> seen(n, false);
            for (std::int64_t i = 0; i < n; ++i) {
                const std::int64_t sequence = sampler.sequence(epoch * n + i);
                ASSERT_TRUE(0 <= sequence && sequence < n) << "n " << n << ": " << sequence;
                ASSERT_FALSE(seen[sequence]) << "n " << n << ": " << sequence << " twice";
                seen[sequence] = true;
            }
        }
    }
}

TEST(SamplerTest, IsAPureFunctionOfSeedAndIndex) {
    const Sampler a(1000, 7), b(1000, 7);
    std::vector<std::int64_t> forward(3000);
    for (std::int64_t i = 0; i < 3000; ++i) forward[i] = a.sequence(i);
    for (std::int64_t i = 2999; i >= 0; --i) ASSERT_EQ(b.sequence(i), forward[i]) << i;
}

TEST(SamplerTest, EpochsAndSeedsDiffer) {
    const std::int64_t n = 500;
    const Sampler sampler(n, 7), other(n, 8);
    std::int64_t same_epoch = 0, same_seed = 0, in_place = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        same_epoch += sampler.sequence(i) == sampler.sequence(n + i);
        same_seed += sampler.sequence(i) == other.sequence(i);
        in_place += sampler.sequence(i) == i;
    }
    // One is expected of each; 10 has probability 1e-7.
    EXPECT_LT(same_epoch, 10);
    EXPECT_LT(same_seed, 10);
    EXPECT_LT(in_place, 10);
}

TEST(SamplerTest, EveryPlaceIsEquallyLikely) {
    // Where sequence 0 goes over many seeds: chi-square with 9 degrees of freedom.
    const std::int64_t n = 10, trials = 20000;
    std::vector<double> counts(n);
    for (std::int64_t seed = 0; seed < trials; ++seed) ++counts[Sampler(n, seed).sequence(0)];
    double chi_square = 0.0;
    for (double count : counts) {
        const double expected = static_cast<double>(trials) / n;
        chi_square += (count - expected) * (count - expected) / expected;
    }
    EXPECT_LT(chi_square, 33.7) << "probability 1e-4 by chance";
}

TEST(SamplerTest, NeighboursDoNotStayNeighbours) {
    const std::int64_t n = 4000;
    const Sampler sampler(n, 3);
    std::int64_t successors = 0;
    for (std::int64_t i = 0; i + 1 < n; ++i) {
        successors += sampler.sequence(i + 1) == sampler.sequence(i) + 1;
    }
    EXPECT_LT(successors, 10);
}

TEST(SamplerTest, TakesVeryLargeDatasets) {
    const std::int64_t n = (std::int64_t{1} << 40) + 12345;
    const Sampler sampler(n, 3);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 1000; ++i) {
        const std::int64_t sequence = sampler.sequence(n * 5 + i);
        ASSERT_TRUE(0 <= sequence && sequence < n);
        EXPECT_TRUE(seen.insert(sequence).second);
    }
    EXPECT_GT(*seen.rbegin(), n / 2);
}

TEST(SamplerTest, RejectsNothingToSampleAndNegativeIndices) {
    EXPECT_THROW(Sampler(0, 1), Error);
    EXPECT_THROW(Sampler(5, 1).sequence(-1), Error);
}

}  // namespace
}  // namespace evenkeel
