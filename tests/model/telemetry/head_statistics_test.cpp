#include "model/telemetry/head_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/support/devices.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kBatch = 2, kLength = 75, kHeads = 40, kKvHeads = 2, kDim = 64;
constexpr std::int64_t kRows = kBatch * kLength;

AttentionConfig attention_of(QkNormKind kind) {
    AttentionConfig config;
    config.num_heads = kHeads, config.num_kv_heads = kKvHeads, config.head_dim = kDim;
    config.softcap = kind == QkNormKind::kNone ? 30.0 : 0.0;
    config.qk_norm.kind = kind;
    config.qk_norm.eps = 0.25;
    return config;
}

// What each row's rms is to be: differs by token and head, and is `least` at one place.
float planted_rms(std::int64_t row, std::int64_t head) {
    if (row == 101 && head == 1) return 0.125f;
    return 1.0f + 0.5f * static_cast<float>((row + 3 * head) % 4);
}
double mean_planted_rms(std::int64_t head) {
    double sum = 0.0;
    for (std::int64_t row = 0; row < kRows; ++row) sum += planted_rms(row, head);
    return sum / kRows;
}

// The factor that a norm makes of the planted rows.
Tensor planted_rstd(const AttentionConfig& config, std::int64_t heads, Device device) {
    const Tensor rstd = Tensor::uninitialized({kBatch, kLength, heads}, DType::kFloat32);
    for (std::int64_t i = 0; i < rstd.numel(); ++i) {
        double square = std::pow(planted_rms(i / heads, i % heads), 2);
        if (config.qk_norm.kind == QkNormKind::kL2) square *= kDim;
        rstd.data<float>()[i] = static_cast<float>(1.0 / std::sqrt(square + config.qk_norm.eps));
    }
    return rstd.to(device);
}

// Rows of that rms, exact in bf16, within packed rows as those of a layer are.
Tensor planted_rows(std::int64_t heads, Device device) {
    const Tensor rows =
        Tensor::uninitialized({kBatch, kLength, (heads + 3) * kDim}, DType::kBFloat16);
    rows.fill(1000.0f);
    const Tensor part =
        rows.slice(2, kDim, (heads + 1) * kDim).view({kBatch, kLength, heads, kDim});
    const Tensor values = Tensor::uninitialized({kBatch, kLength, heads, kDim}, DType::kFloat32);
    for (std::int64_t i = 0; i < values.numel(); ++i) {
        const std::int64_t row = i / kDim / heads, head = i / kDim % heads;
        values.data<float>()[i] = planted_rms(row, head) * (i % 3 == 0 ? -1.0f : 1.0f);
    }
    part.copy_from(values);
    return rows.to(device).slice(2, kDim, (heads + 1) * kDim).view({kBatch, kLength, heads, kDim});
}

Tensor per_head(float first, Device device) {
    const Tensor values = Tensor::uninitialized({kHeads}, DType::kFloat32);
    for (std::int64_t i = 0; i < kHeads; ++i)
        values.data<float>()[i] = first + static_cast<float>(i);
    return values.to(device);
}

AttentionStats planted_stats(float max_logit, float entropy, Device device) {
    return {per_head(max_logit, device), per_head(2.0f * max_logit, device),
            per_head(entropy, device), per_head(entropy + 1.0f, device),
            per_head(entropy + 2.0f, device)};
}

class HeadStatisticsTest : public ::testing::TestWithParam<Device> {
  protected:
    AttentionSaved saved(const AttentionConfig& config) const {
        AttentionSaved saved;
        if (config.qk_norm.kind == QkNormKind::kNone) {
            saved.q = planted_rows(kHeads, GetParam());
            saved.k = planted_rows(kKvHeads, GetParam());
            return saved;
        }
        saved.rstd_q = planted_rstd(config, kHeads, GetParam());
        saved.rstd_k = planted_rstd(config, kKvHeads, GetParam());
        // Known by their shape alone.
        saved.q = Tensor::zeros({kBatch, kLength, kHeads, kDim}, DType::kBFloat16, GetParam());
        saved.k = Tensor::zeros({kBatch, kLength, kKvHeads, kDim}, DType::kBFloat16, GetParam());
        return saved;
    }
    HeadStatistics statistics(const AttentionConfig& config, std::int64_t layers) const {
        return HeadStatistics(std::vector(static_cast<std::size_t>(layers), config), kHeads,
                              kKvHeads, GetParam());
    }
    testing::SoloGrid solo_;
};
INSTANTIATE_TEST_SUITE_P(,
                         HeadStatisticsTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

const MetricTable& find(const std::vector<MetricTable>& tables, const std::string& name) {
    for (const MetricTable& table : tables) {
        if (table.name == name) return table;
    }
    throw_error(ErrorCode::kInvalidArgument, "find", "no table " + name);
}

void expect_values(const MetricTable& table,
                   std::int64_t layer,
                   const std::function<double(std::int64_t)>& want) {
    for (std::int64_t head = 0; head < table.columns; ++head) {
        const double value = table.values[static_cast<std::size_t>(layer * table.columns + head)];
        EXPECT_NEAR(value, want(head), 1e-4 * std::abs(want(head)))
            << table.name << " of layer " << layer << " head " << head;
    }
}

TEST_P(HeadStatisticsTest, KeepsMaximaAndTheMeansOfAllRows) {
    const AttentionConfig config = attention_of(QkNormKind::kNone);
    HeadStatistics all = statistics(config, 2);
    const AttentionSaved rows = saved(config);
    all.add(1, planted_stats(3.0f, 1.0f, GetParam()), rows, 10);
    all.count_rows(10);
    all.add(1, planted_stats(2.0f, 4.0f, GetParam()), rows, 20);
    all.count_rows(20);
    const std::vector<MetricTable> tables = all.reduce(solo_.grid);
    EXPECT_TRUE(all.reduce(solo_.grid).empty()) << "starts anew";
    expect_values(find(tables, "max_logit"), 1, [](auto head) { return 3.0 + head; });
    expect_values(find(tables, "max_logit_uncapped"), 1, [](auto head) { return 6.0 + head; });
    expect_values(find(tables, "entropy"), 1, [](auto head) { return 3.0 + head; });
    expect_values(find(tables, "entropy_share"), 1, [](auto head) { return 4.0 + head; });
    expect_values(find(tables, "saturation"), 1, [](auto head) { return 5.0 + head; });
    EXPECT_EQ(find(tables, "max_logit").values[5], -INFINITY) << "layer 0 was not added";
}

TEST_P(HeadStatisticsTest, FindsTheRmsOfRowsFromTheirNormOrFromThemselves) {
    for (const QkNormKind kind :
         {QkNormKind::kNone, QkNormKind::kRms, QkNormKind::kL2, QkNormKind::kLayerNorm}) {
        SCOPED_TRACE(static_cast<int>(kind));
        const AttentionConfig config = attention_of(kind);
        HeadStatistics all = statistics(config, 1);
        all.add(0, planted_stats(3.0f, 1.0f, GetParam()), saved(config), kRows);
        all.count_rows(kRows);
        const std::vector<MetricTable> tables = all.reduce(solo_.grid);
        const auto least = [](std::int64_t head) { return head == 1 ? 0.125 : 1.0; };
        for (const char* name : {"q_rms", "k_rms"}) {
            expect_values(find(tables, name), 0, mean_planted_rms);
            expect_values(find(tables, concat(name, "_min")), 0, least);
        }
        EXPECT_EQ(find(tables, "k_rms").columns, kKvHeads);
        EXPECT_EQ(find(tables, "q_rms").columns, kHeads);
        const bool has_uncapped = std::any_of(tables.begin(), tables.end(), [](const auto& table) {
            return table.name == "max_logit_uncapped";
        });
        EXPECT_EQ(has_uncapped, kind == QkNormKind::kNone) << "only with softcap";
    }
}

TEST_P(HeadStatisticsTest, OneStatisticOfATokenIsThatOfAllItsHeads) {
    const AttentionConfig config = attention_of(QkNormKind::kRms);
    HeadStatistics all = statistics(config, 1);
    AttentionSaved rows = saved(config);
    rows.rstd_q = planted_rstd(config, 1, GetParam()).view({kBatch, kLength});
    all.add(0, planted_stats(3.0f, 1.0f, GetParam()), rows, kRows);
    all.count_rows(kRows);
    expect_values(find(all.reduce(solo_.grid), "q_rms"), 0,
                  [](auto) { return mean_planted_rms(0); });
}

TEST_P(HeadStatisticsTest, KeepsANanWhicheverComesFirst) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const AttentionConfig config = attention_of(QkNormKind::kRms);
    AttentionSaved bad = saved(config);
    bad.rstd_q = bad.rstd_q.clone();
    bad.rstd_q.slice(1, 3, 4).fill(nan);
    for (const bool nan_first : {true, false}) {
        HeadStatistics all = statistics(config, 1);
        for (const bool is_nan : {nan_first, !nan_first}) {
            all.add(0, planted_stats(is_nan ? nan : 3.0f, 1.0f, GetParam()),
                    is_nan ? bad : saved(config), kRows);
            all.count_rows(kRows);
        }
        const std::vector<MetricTable> tables = all.reduce(solo_.grid);
        for (const char* name : {"max_logit", "q_rms", "q_rms_min"}) {
            EXPECT_TRUE(std::isnan(find(tables, name).values[2])) << name << " " << nan_first;
        }
        EXPECT_FALSE(std::isnan(find(tables, "k_rms").values[1]));
    }
}

TEST_P(HeadStatisticsTest, RefusesStatisticsOfOtherHeads) {
    const AttentionConfig config = attention_of(QkNormKind::kRms);
    HeadStatistics all = statistics(config, 1);
    AttentionStats stats = planted_stats(3.0f, 1.0f, GetParam());
    stats.saturation = Tensor::zeros({kHeads - 1}, DType::kFloat32, GetParam());
    EXPECT_THROW(all.add(0, stats, saved(config), kRows), Error);
}

}  // namespace
}  // namespace evenkeel
