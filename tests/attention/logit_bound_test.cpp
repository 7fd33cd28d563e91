#include "attention/logit_bound.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/data.h"

namespace evenkeel {
namespace {

using Kind = QkNormConfig::Kind;

AttentionConfig small(Kind kind) {
    AttentionConfig config;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 64;
    config.qk_norm.kind = kind;
    return config;
}

Tensor gains(std::initializer_list<float> heads) {
    const auto count = static_cast<std::int64_t>(heads.size());
    const Tensor gain = Tensor::uninitialized({count, 64}, DType::kFloat32);
    std::int64_t head = 0;
    for (const float value : heads) {
        gain.slice(0, head, head + 1).fill(value);
        ++head;
    }
    return gain;
}

TEST(LogitBoundTest, IsRootOfWidthTimesTheGains) {
    for (const Kind kind : {Kind::kRms, Kind::kLayerNorm}) {
        const auto bounds = logit_bounds(small(kind), gains({1, -2, 3, 4}), gains({0.5, 5}), 4, 2);
        const double want[] = {4, 8, 120, 160};  // 8 gq gk
        for (int head = 0; head < 4; ++head) EXPECT_NEAR(bounds[head], want[head], 1e-9);
    }
    EXPECT_NEAR(logit_bounds(small(Kind::kRms), {}, {}, 4, 2)[3], 8.0, 1e-12);
}

TEST(LogitBoundTest, IsTheGainForUnitLength) {
    AttentionConfig config = small(Kind::kL2);
    EXPECT_NEAR(logit_bounds(config, gains({7, 8, 9, 10}), {}, 4, 2)[2], 9.0, 1e-12);
    config.softmax_scale = 2.0;
    EXPECT_NEAR(logit_bounds(config, gains({7, 8, 9, 10}), {}, 4, 2)[2], 18.0, 1e-12);
}

// One head may hold all of a token's length: sqrt(H D) sqrt(K D) / sqrt(D).
TEST(LogitBoundTest, GrowsWithTheHeadsOfOneStatistic) {
    AttentionConfig config = small(Kind::kRms);
    config.qk_norm.scope = QkNormConfig::Scope::kFullWidth;
    EXPECT_NEAR(logit_bounds(config, {}, {}, 4, 2)[0], 8.0 * std::sqrt(8.0), 1e-9);
}

TEST(LogitBoundTest, IsAtMostTheCap) {
    AttentionConfig config = small(Kind::kNone);
    EXPECT_EQ(logit_bounds(config, {}, {}, 4, 2)[0], INFINITY);
    config.softcap = 50.0;
    EXPECT_EQ(logit_bounds(config, {}, {}, 4, 2)[0], 50.0);
    config.qk_norm.kind = Kind::kRms;
    EXPECT_NEAR(logit_bounds(config, {}, {}, 4, 2)[0], 50.0 * std::tanh(8.0 / 50.0), 1e-9);
}

// A large gain of q meets a large one of k only where channels are the same, or turn together.
TEST(LogitBoundTest, PairsAreThoseThatTurnTogether) {
    AttentionConfig config = small(Kind::kRms);
    const Tensor q = gains({1, 1, 1, 1}), k = gains({1, 1});
    q.data<float>()[3] = 10.0f;
    k.data<float>()[35] = 10.0f;  // pairs with 3 in halves, not among neighbours
    EXPECT_NEAR(logit_bounds(config, q, k, 4, 2)[0], 800.0, 1e-9);
    config.rope.layout = RopeLayout::kInterleaved;
    EXPECT_NEAR(logit_bounds(config, q, k, 4, 2)[0], 80.0, 1e-9);
    config.rope.layout = RopeLayout::kHalfSplit;
    config.rope.rotary_fraction = 0.0;
    EXPECT_NEAR(logit_bounds(config, q, k, 4, 2)[0], 80.0, 1e-9);
}

TEST(LogitBoundTest, SharedGainsAreThoseOfEveryHead) {
    const Tensor q = Tensor::full({64}, 2.0f, DType::kFloat32);
    const Tensor k = Tensor::full({64}, 3.0f, DType::kFloat32);
    for (const double bound : logit_bounds(small(Kind::kRms), q, k, 4, 2)) {
        EXPECT_NEAR(bound, 48.0, 1e-9);
    }
}

}  // namespace
}  // namespace evenkeel
