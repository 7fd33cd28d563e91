#include "framework/data/blend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "framework/error.h"

namespace evenkeel {
namespace {

// The largest distance of any corpus's share from its weight, in samples, over all prefixes up to `samples`.
double largest_error(const std::vector<double>& weights, std::int64_t samples) {
    const Blend blend(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<std::int64_t> counts(weights.size(), 0);
    double worst = 0.0;
    for (std::int64_t n = 0; n < samples; ++n) {
        const Blend::Place place = blend.place(n);
        EXPECT_EQ(place.index, counts[place.corpus]) << "sample " << n;
        ++counts[place.corpus];
        for (std::size_t c = 0; c < weights.size(); ++c) {
            const double want = static_cast<double>(n + 1) * weights[c] / sum;
            worst = std::max(worst, std::abs(static_cast<double>(counts[c]) - want));
        }
    }
    return worst;
}

TEST(BlendTest, OneCorpusGetsAll) {
    const Blend blend({3.5});
    EXPECT_EQ(blend.period(), 1);
    for (std::int64_t n : {0ll, 1ll, 1'000'000'000'000ll}) {
        EXPECT_EQ(blend.place(n).corpus, 0u);
        EXPECT_EQ(blend.place(n).index, n);
    }
}

TEST(BlendTest, SharesAreWithinASampleAtEveryPrefix) {
    EXPECT_LT(largest_error({0.7, 0.3}, 5000), 1.0);
    EXPECT_LT(largest_error({1, 1, 1, 1, 1}, 5000), 1.0);
    EXPECT_LT(largest_error({0.5, 0.25, 0.125, 0.0625, 0.0625}, 5000), 1.0);
    EXPECT_LT(largest_error({0.01, 0.99}, 5000), 1.0);
    EXPECT_LT(largest_error({0.35, 0.35, 0.1, 0.1, 0.05, 0.05}, 5000), 1.0);
    EXPECT_LT(largest_error({30, 20, 20, 10, 8, 5, 3, 2, 1, 1}, 5000), 1.0);
    std::vector<double> many(97, 1.0);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] += static_cast<double>(i * i % 31);
    EXPECT_LT(largest_error(many, 20000), 1.0);
}

TEST(BlendTest, DecimalsAreTakenExactly) {
    EXPECT_EQ(Blend({0.7, 0.3}).numerators(), (std::vector<std::int64_t>{7, 3}));
    EXPECT_EQ(Blend({0.1, 0.2, 0.7}).numerators(), (std::vector<std::int64_t>{1, 2, 7}));
    EXPECT_EQ(Blend({70, 30}).numerators(), (std::vector<std::int64_t>{7, 3}));
    EXPECT_EQ(Blend({0.123456, 0.876544}).numerators(), (std::vector<std::int64_t>{1929, 13696}));
}

TEST(BlendTest, OthersBecomeTheNearestFractions) {
    const std::vector<double> weights{1.0, std::sqrt(2.0), 1e-9};
    const std::vector<std::int64_t> parts = share_numerators(weights, 1000);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}), 1000);
    EXPECT_EQ(parts, (std::vector<std::int64_t>{414, 585, 1}));
    const Blend blend({123456789.0, 987654321.0});
    EXPECT_LE(blend.period(), 1 << 20);
    EXPECT_NEAR(static_cast<double>(blend.numerators()[0]) / static_cast<double>(blend.period()),
                123456789.0 / 1111111110.0, 1e-6);
}

TEST(BlendTest, SumsOfHugeWeightsDoNotOverflow) {
    EXPECT_EQ(share_numerators({1e308, 1e308, 1.0}, 1001),
              (std::vector<std::int64_t>{500, 500, 1}));
    EXPECT_EQ(share_numerators({4e-320, 4e-320, 1e-300}, 100),
              (std::vector<std::int64_t>{1, 1, 98}));
}

TEST(BlendTest, TheSequenceGoesOnAfterAPeriod) {
    const Blend blend({0.5, 0.3, 0.2});
    const std::int64_t far = 10 * 1'000'000'000'000;
    for (std::int64_t n = 0; n < 10; ++n) {
        EXPECT_EQ(blend.place(far + n).corpus, blend.place(n).corpus);
        EXPECT_EQ(blend.place(far + n).index,
                  far / 10 * blend.numerators()[blend.place(n).corpus] + blend.place(n).index);
    }
}

TEST(BlendTest, WeightsThatAreNoneAreRefused) {
    EXPECT_THROW(Blend({}), Error);
    EXPECT_THROW(Blend({0.5, 0.0}), Error);
    EXPECT_THROW(Blend({0.5, -1.0}), Error);
    EXPECT_THROW(Blend({NAN}), Error);
    EXPECT_THROW(Blend({INFINITY, 1.0}), Error);
    EXPECT_THROW(Blend({1.0}).place(-1), Error);
}

}  // namespace
}  // namespace evenkeel
