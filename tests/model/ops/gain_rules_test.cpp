// What is done to gains between updates, on every device.
#include "model/ops/gain_rules.h"

#include <gtest/gtest.h>

#include <cmath>

#include "attention/gain.h"
#include "attention/logit_bound.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::near;
using testing::on;
using testing::on_cpu;
using testing::same_bits;

constexpr DType kFp32 = DType::kFloat32;

Tensor floats(const std::vector<float>& values, const Shape& shape) {
    const Tensor tensor = Tensor::uninitialized(shape, kFp32);
    std::copy(values.begin(), values.end(), tensor.data<float>());
    return tensor;
}

class GainRules : public ::testing::TestWithParam<Device> {
  protected:
    Device device() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(,
                         GainRules,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST_P(GainRules, LambdaGoesFromZeroToOneAndStays) {
    const Tensor done = on(device(), floats({0.0f}, {1})), lambda = on(device(), floats({7}, {1}));
    const auto expect = [&](float updates, float want) {
        EXPECT_EQ(on_cpu(done).data<float>()[0], updates);
        EXPECT_EQ(on_cpu(lambda).data<float>()[0], want);
    };
    advance_anneal(4, false, done, lambda);
    expect(0.0f, 0.0f);
    for (const float updates : {1.0f, 2.0f, 3.0f, 4.0f}) {
        advance_anneal(4, true, done, lambda);
        expect(updates, updates / 4.0f);
    }
    advance_anneal(4, true, done, lambda);
    expect(4.0f, 1.0f);
}

// Pairs (0, 2) and (1, 3) turn together; channel 4 and 5 do not turn. Limit 6, 12 where nothing turns.
TEST_P(GainRules, QueriesComeBackToWhatTheirKeysAllow) {
    GainLimits limits;
    limits.turned = 6.0f, limits.unturned = 12.0f;
    limits.rotary_dim = 4;
    const Tensor k = on(device(), floats({1, -2, 3, 0, 4, 0.5, 2, 2, 2, 2, 2, 2}, {2, 6}));
    const Tensor q = on(device(), floats({2.5, 2, -1, 4,  -5, 30, 9, -9, 3, 1, 7, 5,  //
                                          3,   3, -3, -3, 6,  6,  0, 0,  0, 0, 0, NAN},
                                         {4, 6}));
    const Tensor before = on_cpu(k).clone();
    hold_gains(limits, {}, {}, q, k);
    EXPECT_TRUE(same_bits(on_cpu(k), before));
    EXPECT_TRUE(near(on_cpu(q), {2, 2, -1, 3,  -3, 24, 2, -3, 2, 1, 3, 5,  //
                                 3, 3, -3, -3, 6,  6,  0, 0,  0, 0, 0, NAN},
                     0.0, 0.0));
    limits.interleaved = true;  // now (0, 1) and (2, 3)
    const Tensor other = on(device(), floats({4, 4, 4, 4, 4, 4}, {1, 6}));
    hold_gains(limits, {}, {}, other, on(device(), floats({1, -2, 3, 0, 4, 0.5}, {1, 6})));
    EXPECT_TRUE(near(on_cpu(other), {3, 3, 2, 2, 3, 4}, 0.0, 0.0));
}

TEST_P(GainRules, PullGoesItsShareOfTheWayBack) {
    GainLimits limits;
    limits.pull = 0.25f;
    const Tensor q = on(device(), floats({1, 2, 4, 8}, {2, 2}));
    const Tensor k = on(device(), floats({-2, 6}, {1, 2}));
    hold_gains(limits, on(device(), floats({5, 2, 0, 0}, {2, 2})),
               on(device(), floats({2, 2}, {1, 2})), q, k);
    EXPECT_TRUE(near(on_cpu(q), {2, 2, 3, 6}, 0.0, 0.0));
    EXPECT_TRUE(near(on_cpu(k), {-1, 5}, 0.0, 0.0));
    limits.unturned = 5.0f;  // by the gains of k that are pulled already
    limits.pull = 0.5f;
    hold_gains(limits, q, on(device(), floats({-3, 5}, {1, 2})), q, k);
    EXPECT_TRUE(near(on_cpu(k), {-2, 5}, 0.0, 0.0));
    EXPECT_TRUE(near(on_cpu(q), {2, 1, 2.5, 1}, 0.0, 0.0));
}

struct Bounded {
    const char* name;
    void (*set)(AttentionConfig& config);
};

// No bound is more than it may be, whatever gains are stored as; heads below it keep their bits; both devices do the
// same.
TEST_P(GainRules, NoHeadsBoundIsLargerThanTheLimit) {
    const Bounded cases[] = {
        {"half-split", [](AttentionConfig&) {}},
        {"interleaved, half of the channels",
         [](AttentionConfig& c) {
             c.rope.layout = RopeLayout::kInterleaved;
             c.rope.rotary_fraction = 0.5;
         }},
        {"offset", [](AttentionConfig& c) { c.qk_norm.gain_offset = 1.0; }},
        {"unit", [](AttentionConfig& c) { c.qk_norm.gain_unit = 0.03125; }},
        {"unit length",
         [](AttentionConfig& c) {
             c.qk_norm.kind = QkNormKind::kL2;
             c.softmax_scale = 6.0;
         }},
        {"scale", [](AttentionConfig& c) { c.softmax_scale = 0.7; }},
        {"softcap", [](AttentionConfig& c) { c.softcap = 20.0; }},
        {"softcap below", [](AttentionConfig& c) { c.softcap = 5.0; }},
        {"yarn",
         [](AttentionConfig& c) {
             c.rope.scaling = RopeConfig::Scaling::kYarn;
             c.rope.factor = 8.0;
             c.rope.original_max_position = 64;
             c.rope.rotary_fraction = 0.5;
         }},
    };
    for (const Bounded& bounded : cases) {
        SCOPED_TRACE(bounded.name);
        AttentionConfig config;
        config.num_heads = 6, config.num_kv_heads = 3, config.head_dim = 64;
        config.qk_norm.gain_bound = 8.0;
        bounded.set(config);
        const auto parameter = [&](std::int64_t heads, std::uint64_t seed, double deviation) {
            const Tensor values = gaussian({heads, 64}, kFp32, seed, deviation);
            for (std::int64_t i = 0; i < values.numel(); ++i) {
                float& value = values.data<float>()[i];
                value = static_cast<float>((value - config.qk_norm.gain_offset) *
                                           config.qk_norm.gain_unit);
            }
            return values;
        };
        const Tensor first_q = parameter(6, 1, 2.0), first_k = parameter(3, 2, 1.0);
        first_q.slice(0, 4, 5).fill(
            static_cast<float>((1e-3 - config.qk_norm.gain_offset) * config.qk_norm.gain_unit));
        const Tensor q = on(device(), first_q.clone()), k = on(device(), first_k);
        const GainLimits limits = gain_limits(config);
        hold_gains(limits, {}, {}, q, k);
        const Tensor got = on_cpu(q);
        const auto bounds_of = [&](const Tensor& gains) {
            return logit_bounds(config, effective_gain(gains, config.qk_norm, 6, 64),
                                effective_gain(first_k, config.qk_norm, 3, 64), 6, 3);
        };
        const auto before = bounds_of(first_q), after = bounds_of(got);
        const double allowed = config.softcap > 0.0 ? std::min(8.0, config.softcap) : 8.0;
        for (std::size_t head = 0; head < 6; ++head) {
            EXPECT_LE(after[head], allowed * (1.0 + 1e-6)) << "head " << head;
            const auto at = static_cast<std::int64_t>(head);
            if (before[head] <= allowed) {
                EXPECT_TRUE(same_bits(got.slice(0, at, at + 1), first_q.slice(0, at, at + 1)))
                    << "head " << head;
            } else if (config.softcap != 5.0) {
                EXPECT_GE(after[head], 0.99 * allowed) << "head " << head;
            }
        }
        EXPECT_LT(before[4], allowed);
        EXPECT_GT(before[0], config.softcap == 5.0 ? 4.9 : allowed);
        const Tensor again = got.clone();
        hold_gains(limits, {}, {}, again, first_k);
        EXPECT_TRUE(same_bits(again, got)) << "held twice";
        const Tensor cpu = first_q.clone();
        hold_gains(limits, {}, {}, cpu, first_k);
        EXPECT_TRUE(same_bits(got, cpu)) << "on the CPU";
    }
}

TEST_P(GainRules, WhatDoesNotFitIsAnError) {
    const Tensor q = on(device(), Tensor::zeros({4, 64}, kFp32));
    const Tensor k = on(device(), Tensor::zeros({2, 64}, kFp32));
    GainLimits limits;
    EXPECT_THROW(hold_gains(limits, q, k, q, k), Error) << "starts without a pull";
    EXPECT_THROW(hold_gains(limits, {}, {}, k, q), Error) << "heads";
    limits.pull = 0.5f;
    EXPECT_THROW(hold_gains(limits, {}, {}, q, k), Error) << "no starts";
    EXPECT_THROW(hold_gains(limits, k, k, q, k), Error) << "start of another shape";
    EXPECT_THROW(advance_anneal(0, true, k, k), Error);
}

}  // namespace
}  // namespace evenkeel
