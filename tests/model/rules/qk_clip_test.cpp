// QK-Clip: what it does to weights, and to the logits of the next pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "framework/parameter_buckets.h"
#include "model/method.h"
#include "model/ops/logit_clip.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::on;
using testing::on_cpu;
using testing::same_bits;
using testing::SoloGrid;

constexpr DType kFp32 = DType::kFloat32;

Tensor row(std::initializer_list<float> values) {
    const Tensor tensor = Tensor::uninitialized({static_cast<std::int64_t>(values.size())}, kFp32);
    std::copy(values.begin(), values.end(), tensor.data<float>());
    return tensor;
}

class LogitClipTest : public ::testing::TestWithParam<Device> {
  protected:
    Device device() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(,
                         LogitClipTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST_P(LogitClipTest, MaximumKeepsWhatIsLargerAndWhatIsNoNumber) {
    const Tensor highest = on(device(), row({-INFINITY, 1, 5, NAN, 2, -3}));
    take_maximum(highest, on(device(), row({-2, 2, 4, 1, NAN, INFINITY})));
    const Tensor got = on_cpu(highest);
    const float want[] = {-2, 2, 5, NAN, NAN, INFINITY};
    for (int i = 0; i < 6; ++i) {
        if (std::isnan(want[i])) {
            EXPECT_TRUE(std::isnan(got.data<float>()[i])) << i;
        } else {
            EXPECT_EQ(got.data<float>()[i], want[i]) << i;
        }
    }
}

TEST_P(LogitClipTest, GroupsTakeTheirLargestHead) {
    const Tensor heads = on(device(), row({1, 9, -4, -7, 3, 2, NAN, 8}).view({2, 4}));
    const Tensor groups = on(device(), Tensor::zeros({2, 2}, kFp32));
    group_maximum(heads, groups);
    const Tensor got = on_cpu(groups);
    EXPECT_EQ(got.data<float>()[0], 9.0f);
    EXPECT_EQ(got.data<float>()[1], -4.0f);
    EXPECT_EQ(got.data<float>()[2], 3.0f);
    EXPECT_TRUE(std::isnan(got.data<float>()[3]));
    const Tensor wrong = on(device(), Tensor::zeros({2, 3}, kFp32));
    EXPECT_THROW(group_maximum(heads, wrong), Error);
}

// sqrt(100 / 400) = 1/2 for the second of six heads; all others keep their bits.
TEST_P(LogitClipTest, OnlyHeadsBeyondTheThresholdAreScaled) {
    for (const DType type : {kFp32, DType::kBFloat16}) {
        Parameter weight = declare_parameter("w", {6, 5000}, Sharding::replicated(0, 1), type);
        ParameterList list = {&weight};
        const ParameterBuckets memory(list, device());
        init_normal(weight, 1.0, 1);
        const Tensor before = on_cpu(weight.master).clone(), rounded = on_cpu(weight.value).clone();
        const Tensor maximum = on(device(), row({100, 400, -1e9, NAN, INFINITY, 99}));
        clip_heads(maximum, 100.0, 0.0, weight);
        const Tensor master = on_cpu(weight.master), value = on_cpu(weight.value);
        for (std::int64_t head = 0; head < 6; ++head) {
            const Tensor now = master.slice(0, head, head + 1);
            if (head != 1) {
                EXPECT_TRUE(same_bits(now, before.slice(0, head, head + 1))) << head;
                EXPECT_TRUE(
                    same_bits(value.slice(0, head, head + 1), rounded.slice(0, head, head + 1)))
                    << head;
                continue;
            }
            for (std::int64_t i = 0; i < 5000; ++i) {
                ASSERT_EQ(now.data<float>()[i], 0.5f * before.data<float>()[5000 + i]) << i;
            }
            EXPECT_TRUE(same_bits(value.slice(0, 1, 2), now.to(type)));
        }
    }
}

TEST_P(LogitClipTest, CountsTheHeadsThatAreScaled) {
    const Tensor maximum = on(device(), row({100, 400, -1e9, NAN, INFINITY, 101}));
    const Tensor counts = on(device(), row({0, 3, 0, 0, 0, 0}));
    count_clipped(maximum, 100.0, counts);
    const float want[] = {0, 4, 0, 0, 0, 1};
    for (int i = 0; i < 6; ++i) EXPECT_EQ(on_cpu(counts).data<float>()[i], want[i]) << i;
}

TEST_P(LogitClipTest, OffsetsCountAsPartOfTheGain) {
    Parameter gain = declare_parameter("g", {1, 64}, Sharding::replicated(0, 1), kFp32);
    ParameterList list = {&gain};
    const ParameterBuckets memory(list, device());
    init_constant(gain, 0.5f);
    clip_heads(on(device(), row({400})), 100.0, 1.0, gain);
    EXPECT_EQ(on_cpu(gain.value).data<float>()[63], -0.25f);  // 1.5 becomes 0.75
}

// The same batch before and after; nothing else changes the weights.
struct BeforeAndAfter {
    std::vector<float> before, after;  // largest logits, [L, H]
};

BeforeAndAfter clip_once(LanguageModel& model, const Batch& batch) {
    BeforeAndAfter logits;
    testing::forward_backward(model, batch);
    logits.before = model.head_metrics().front().values;
    model.finish_update();
    testing::forward_backward(model, batch);
    logits.after = model.head_metrics().front().values;
    return logits;
}

ModelConfig clipped_model(double threshold, std::int64_t kv_heads) {
    ModelConfig config = testing::tiny_model();
    apply_method("qk_clip", config);
    config.attention.num_kv_heads = kv_heads;
    config.attention.qk_clip_threshold = threshold;
    return config;
}

double middle(std::vector<float> values) {
    std::sort(values.begin(), values.end());
    return 0.5 * (values[values.size() / 2 - 1] + values[values.size() / 2]);
}

// The threshold lies amid the first layer's heads: layers behind it see other inputs after the clip.
double threshold_amid(const ModelConfig& config, const Batch& batch) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, config, 1);
    testing::forward_backward(model, batch);
    const auto values = model.head_metrics().front().values;
    return middle({values.begin(), values.begin() + 4});
}

TEST(QkClipTest, HeadsOfTheirOwnComeBackToTheThreshold) {
    const Batch batch = testing::random_batch(2, 33, 32, 1);
    const double threshold = threshold_amid(clipped_model(1e9, 4), batch);
    const SoloGrid solo;
    LanguageModel model(solo.grid, clipped_model(threshold, 4), 1);
    const Tensor wq = testing::find(model, "layers.0.attention.wq").value;
    const Tensor wq_before = wq.clone();
    const BeforeAndAfter logits = clip_once(model, batch);
    int clipped = 0;
    for (int head = 0; head < 4; ++head) {
        if (logits.before[head] > threshold) {
            ++clipped;
            EXPECT_NEAR(logits.after[head], threshold, 1e-5 * threshold) << head;
        } else {
            EXPECT_EQ(logits.after[head], logits.before[head]) << head;
            EXPECT_TRUE(same_bits(wq.slice(0, head * 32, head * 32 + 32),
                                  wq_before.slice(0, head * 32, head * 32 + 32)))
                << head;
        }
    }
    EXPECT_EQ(clipped, 2);
}

TEST(QkClipTest, HeadsThatShareAKeyGoWithTheWorstOfThem) {
    const Batch batch = testing::random_batch(2, 33, 32, 1);
    const double threshold = threshold_amid(clipped_model(1e9, 2), batch);
    const SoloGrid solo;
    LanguageModel model(solo.grid, clipped_model(threshold, 2), 1);
    const BeforeAndAfter logits = clip_once(model, batch);
    for (int group = 0; group < 2; ++group) {
        const float first = logits.before[2 * group], second = logits.before[2 * group + 1];
        const double worst = std::max(first, second);
        const double factor = std::min(1.0, threshold / worst);
        for (int head = 2 * group; head < 2 * group + 2; ++head) {
            EXPECT_NEAR(logits.after[head], factor * logits.before[head], 1e-5 * threshold) << head;
            EXPECT_LE(logits.after[head], threshold * (1.0 + 1e-5)) << head;
        }
    }
}

// Without the biases' share a head would end above the threshold.
TEST(QkClipTest, BiasesAreClippedWithTheirRows) {
    const Batch batch = testing::random_batch(2, 33, 32, 1);
    const auto biased = [&](LanguageModel& model) {
        for (const char* name : {"wq_bias", "wk_bias", "wv_bias"}) {
            init_normal(testing::find(model, concat("layers.0.attention.", name)), 2.0, 7);
        }
    };
    ModelConfig config = clipped_model(1e9, 4);
    config.attention.qkv_bias = true;
    const SoloGrid solo;
    LanguageModel unclipped(solo.grid, config, 1);
    biased(unclipped);
    testing::forward_backward(unclipped, batch);
    const auto values = unclipped.head_metrics().front().values;
    const double threshold = middle({values.begin(), values.begin() + 4});

    config.attention.qk_clip_threshold = threshold;
    LanguageModel model(solo.grid, config, 1);
    biased(model);
    const Tensor k_bias = testing::find(model, "layers.0.attention.wk_bias").value;
    const Tensor v_bias = testing::find(model, "layers.0.attention.wv_bias").value;
    const Tensor k_before = k_bias.clone(), v_before = v_bias.clone();
    const BeforeAndAfter logits = clip_once(model, batch);
    int clipped = 0;
    for (int head = 0; head < 4; ++head) {
        const Tensor now = k_bias.slice(0, head * 32, head * 32 + 32);
        const Tensor before = k_before.slice(0, head * 32, head * 32 + 32);
        if (logits.before[head] > threshold) {
            ++clipped;
            EXPECT_NEAR(logits.after[head], threshold, 1e-5 * threshold) << head;
            const auto root = static_cast<float>(std::sqrt(threshold / logits.before[head]));
            EXPECT_NEAR(now.data<float>()[5], root * before.data<float>()[5], 1e-5) << head;
        } else {
            EXPECT_EQ(logits.after[head], logits.before[head]) << head;
            EXPECT_TRUE(same_bits(now, before)) << head;
        }
    }
    EXPECT_EQ(clipped, 2);
    EXPECT_TRUE(same_bits(v_bias, v_before));
}

TEST(QkClipTest, NormalisedHeadsAreClippedInTheirGains) {
    const Batch batch = testing::random_batch(2, 33, 32, 1);
    for (const double offset : {0.0, 1.0}) {
        ModelConfig config = clipped_model(1.0, 2);
        config.attention.qk_norm.kind = QkNormKind::kRms;
        config.attention.qk_norm.gain_offset = offset;
        const SoloGrid solo;
        LanguageModel model(solo.grid, config, 1);
        const Tensor wq_before = testing::find(model, "layers.0.attention.wq").value.clone();
        const BeforeAndAfter logits = clip_once(model, batch);
        for (int group = 0; group < 2; ++group) {
            const float first = logits.before[2 * group], second = logits.before[2 * group + 1];
            ASSERT_GT(first, 1.0f);
            EXPECT_NEAR(std::max(logits.after[2 * group], logits.after[2 * group + 1]), 1.0, 1e-5);
            EXPECT_NEAR(logits.after[2 * group], first / std::max(first, second), 1e-5);
        }
        EXPECT_TRUE(same_bits(testing::find(model, "layers.0.attention.wq").value, wq_before));
    }
}

TEST(QkClipTest, ATableCountsClippedUpdatesSinceTheLastOne) {
    const Batch batch = testing::random_batch(2, 33, 32, 1);
    ModelConfig config = clipped_model(threshold_amid(clipped_model(1e9, 4), batch), 2);
    const SoloGrid solo;
    LanguageModel model(solo.grid, config, 1);
    const auto clipped = [&] {
        for (const MetricTable& table : model.head_metrics()) {
            if (table.name == "clipped") return table;
        }
        return MetricTable{};
    };
    testing::forward_backward(model, batch);
    const auto logits = model.head_metrics().front().values;  // none was clipped yet
    model.finish_update();
    testing::forward_backward(model, batch);
    const MetricTable first = clipped();
    ASSERT_EQ(first.values.size(), 8u);
    EXPECT_EQ(first.rows, 2);
    for (int head = 0; head < 8; ++head) {
        const float worst = std::max(logits[head / 2 * 2], logits[head / 2 * 2 + 1]);
        EXPECT_EQ(first.values[head], worst > config.attention.qk_clip_threshold ? 1.0f : 0.0f)
            << head;
    }
    testing::forward_backward(model, batch);
    for (const float count : clipped().values) EXPECT_EQ(count, 0.0f);
}

// A step's maximum is over its micro-batches, and starts anew with the next step; telemetry need not be on.
TEST(QkClipTest, TheMaximumIsThatOfTheStep) {
    const Batch loud = testing::random_batch(2, 33, 32, 1),
                other = testing::random_batch(2, 33, 32, 2);
    ModelConfig config = clipped_model(0.5, 4);
    config.telemetry = false;
    const SoloGrid solo;
    LanguageModel model(solo.grid, config, 1), both(solo.grid, config, 1),
        none(solo.grid, config, 1);
    testing::forward_backward(model, loud);
    model.finish_update();
    const Tensor of_loud = testing::find(model, "layers.0.attention.wq").value.clone();
    testing::forward_backward(both, other);
    testing::forward_backward(both, loud);
    both.finish_update();
    testing::forward_backward(none, other);
    none.finish_update();
    const auto first = [](LanguageModel& m, int head) {
        return testing::find(m, "layers.0.attention.wq").value.data<float>()[head * 32 * 32];
    };
    for (int head = 0; head < 4; ++head) {
        EXPECT_EQ(std::abs(first(both, head)),
                  std::min(std::abs(first(model, head)), std::abs(first(none, head))))
            << head;
    }
    // Nothing was seen in this step.
    model.finish_update();
    EXPECT_TRUE(same_bits(testing::find(model, "layers.0.attention.wq").value, of_loud));
    // Evaluation is no part of a step.
    model.evaluate(loud);
    model.finish_update();
    EXPECT_TRUE(same_bits(testing::find(model, "layers.0.attention.wq").value, of_loud));
}

}  // namespace
}  // namespace evenkeel
