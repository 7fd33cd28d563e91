#include "model/telemetry/head_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "model/language_model.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 32, kWidth = 24;

// One layer's weights in memory of their own.
struct Weights {
    Parameter wq, wk, q_gain, k_gain;
    LayerWeights layer() const {
        LayerWeights layer;
        layer.wq = &wq, layer.wk = &wk;
        layer.q_gain = &q_gain, layer.k_gain = &k_gain;
        return layer;
    }
};

Parameter filled(const char* name,
                 const Shape& shape,
                 Device device,
                 const std::function<float(std::int64_t row, std::int64_t column)>& value) {
    Parameter parameter =
        declare_parameter(name, shape, Sharding::replicated(0, 1), DType::kFloat32);
    const Tensor values = Tensor::uninitialized(shape, DType::kFloat32);
    const std::int64_t columns = shape.back();
    for (std::int64_t i = 0; i < values.numel(); ++i) {
        values.data<float>()[i] = value(i / columns, i % columns);
    }
    parameter.master = parameter.value = values.to(device);
    return parameter;
}

AttentionConfig attention() {
    AttentionConfig config;
    config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    return config;
}

Weights planted(Device device, float scale) {
    Weights weights;
    // Every element of head h is scale (h + 1), but for one that is 100.
    weights.wq = filled("wq", {kHeads * kDim, kWidth}, device, [&](auto row, auto column) {
        return row == 2 * kDim + 31 && column == 23 ? 100.0f
                                                    : scale * static_cast<float>(row / kDim + 1);
    });
    weights.wk = filled("wk", {kKvHeads * kDim, kWidth}, device, [&](auto row, auto) {
        return -scale * static_cast<float>(row / kDim + 1);
    });
    // Head h has gains h + 1, but channel 5 has -(h + 3).
    weights.q_gain = filled("q_gain", {kHeads, kDim}, device, [](auto head, auto channel) {
        return static_cast<float>(channel == 5 ? -(head + 3) : head + 1);
    });
    weights.k_gain = filled("k_gain", {kKvHeads, kDim}, device, [](auto head, auto channel) {
        return static_cast<float>(channel == 21 ? 10 * (head + 1) : 1);
    });
    return weights;
}

const MetricTable& find(const std::vector<MetricTable>& tables, const std::string& name) {
    for (const MetricTable& table : tables) {
        if (table.name == name) return table;
    }
    throw_error(ErrorCode::kInvalidArgument, "find", "no table " + name);
}

class HeadWeightsTest : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(,
                         HeadWeightsTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST_P(HeadWeightsTest, AreThoseOfHandMadeWeights) {
    const testing::SoloGrid solo;
    const Weights one = planted(GetParam(), 1.0f), two = planted(GetParam(), 2.0f);
    const auto tables =
        head_weight_tables(solo.grid, {attention(), attention()}, {one.layer(), two.layer()});
    const double rows = kDim * kWidth;
    for (std::int64_t layer = 0; layer < 2; ++layer) {
        const double scale = layer == 0 ? 1.0 : 2.0;
        for (std::int64_t head = 0; head < kHeads; ++head) {
            const auto value = [&](const char* name) {
                return find(tables, name).values[static_cast<std::size_t>(layer * kHeads + head)];
            };
            const double element = scale * static_cast<double>(head + 1);
            const double squares =
                rows * element * element + (head == 2 ? 100.0 * 100.0 - element * element : 0.0);
            EXPECT_NEAR(value("wq_norm"), std::sqrt(squares), 1e-5 * std::sqrt(squares)) << head;
            const double gain = static_cast<double>(head + 1), odd = gain + 2.0;
            EXPECT_EQ(value("q_gain_min"), -odd);
            EXPECT_EQ(value("q_gain_max"), gain);
            EXPECT_NEAR(value("q_gain_rms"), std::sqrt((31.0 * gain * gain + odd * odd) / 32.0),
                        1e-5);
            // Channels 5 and 21 turn together.
            const double k_most = head < 2 ? 10.0 : 20.0;
            EXPECT_NEAR(value("logit_bound"), std::sqrt(32.0) * odd * k_most, 1e-3);
        }
        for (std::int64_t head = 0; head < kKvHeads; ++head) {
            const auto at = static_cast<std::size_t>(layer * kKvHeads + head);
            EXPECT_EQ(find(tables, "k_gain_max").values[at], 10.0f * static_cast<float>(head + 1));
            EXPECT_EQ(find(tables, "k_gain_min").values[at], 1.0f);
            EXPECT_NEAR(find(tables, "wk_norm").values[at],
                        std::sqrt(rows) * scale * static_cast<double>(head + 1), 1e-3);
        }
    }
    EXPECT_EQ(find(tables, "wk_norm").columns, kKvHeads);
    EXPECT_EQ(find(tables, "logit_bound").summary, MetricTable::Summary::kMax);
}

TEST_P(HeadWeightsTest, BiasesHaveNormsOfTheirOwn) {
    const testing::SoloGrid solo;
    Weights weights = planted(GetParam(), 1.0f);
    // Head h has h + 1 and 10 (h + 1).
    const Parameter q_bias = filled("wq_bias", {kHeads * kDim}, GetParam(), [](auto, auto at) {
        return static_cast<float>(at / kDim + 1);
    });
    const Parameter k_bias = filled("wk_bias", {kKvHeads * kDim}, GetParam(), [](auto, auto at) {
        return static_cast<float>(10 * (at / kDim + 1));
    });
    LayerWeights layer = weights.layer();
    layer.wq_bias = &q_bias, layer.wk_bias = &k_bias;
    const auto tables = head_weight_tables(solo.grid, {attention(), attention()}, {layer, layer});
    for (std::int64_t head = 0; head < kHeads; ++head) {
        const auto& values = find(tables, "wq_bias_norm").values;
        EXPECT_NEAR(values[static_cast<std::size_t>(kHeads + head)],
                    std::sqrt(32.0) * static_cast<double>(head + 1), 1e-4);
    }
    EXPECT_EQ(find(tables, "wk_bias_norm").columns, kKvHeads);
    EXPECT_NEAR(find(tables, "wk_bias_norm").values[1], std::sqrt(32.0) * 20.0, 1e-4);
    EXPECT_NEAR(find(tables, "wk_norm").values[0], std::sqrt(double(kDim * kWidth)), 1e-3);
}

TEST_P(HeadWeightsTest, PlainAttentionHasNeitherGainsNorABound) {
    const testing::SoloGrid solo;
    Weights weights = planted(GetParam(), 1.0f);
    AttentionConfig config = attention();
    config.qk_norm.kind = QkNormKind::kNone;
    LayerWeights layer = weights.layer();
    layer.q_gain = layer.k_gain = nullptr;
    const auto names = [](const std::vector<MetricTable>& tables) {
        std::string text;
        for (const MetricTable& table : tables) text += table.name + " ";
        return text;
    };
    EXPECT_EQ(names(head_weight_tables(solo.grid, {config}, {layer})), "wq_norm wk_norm ");
    config.softcap = 30.0;
    const auto capped = head_weight_tables(solo.grid, {config}, {layer});
    EXPECT_EQ(names(capped), "logit_bound wq_norm wk_norm ");
    EXPECT_EQ(capped[0].values[3], 30.0f);
}

}  // namespace
}  // namespace evenkeel
