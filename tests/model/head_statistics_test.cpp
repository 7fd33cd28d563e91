#include "model/head_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/devices.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

AttentionStats stats_of(const HeadStatistics& statistics, float max_logit, float entropy) {
    AttentionStats stats = statistics.make_stats();
    stats.max_logit.fill(max_logit);
    stats.entropy.fill(entropy);
    return stats;
}

class HeadStatisticsTest : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(,
                         HeadStatisticsTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST_P(HeadStatisticsTest, KeepsTheMaximumAndTheMeanOfAllRows) {
    const testing::SoloGrid solo;
    HeadStatistics statistics(1, 2, GetParam());
    statistics.add(0, stats_of(statistics, 3.0f, 1.0f), 10);
    statistics.count_rows(10);
    statistics.add(0, stats_of(statistics, 2.0f, 4.0f), 20);
    statistics.count_rows(20);
    const std::vector<MetricTable> tables = statistics.reduce(solo.grid);
    EXPECT_TRUE(statistics.reduce(solo.grid).empty()) << "starts anew";
    ASSERT_EQ(tables.size(), 2u);
    EXPECT_EQ(tables[0].values, (std::vector<float>{3.0f, 3.0f}));
    EXPECT_EQ(tables[1].values, (std::vector<float>{3.0f, 3.0f}));
}

TEST_P(HeadStatisticsTest, KeepsANanWhicheverComesFirst) {
    const testing::SoloGrid solo;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const bool nan_first : {true, false}) {
        HeadStatistics statistics(1, 1, GetParam());
        statistics.add(0, stats_of(statistics, nan_first ? nan : 3.0f, 1.0f), 1);
        statistics.count_rows(1);
        statistics.add(0, stats_of(statistics, nan_first ? 3.0f : nan, 1.0f), 1);
        statistics.count_rows(1);
        EXPECT_TRUE(std::isnan(statistics.reduce(solo.grid)[0].values[0])) << nan_first;
    }
}

}  // namespace
}  // namespace evenkeel
