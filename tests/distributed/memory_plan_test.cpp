#include <gtest/gtest.h>

#include "tests/support/measured_peak.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

void expect_planned(const ModelConfig& config, std::int64_t micro_batch_size) {
    const std::int64_t ranks = testing::world().size();
    const ProcessGrid grid(testing::world(), {.tensor_parallel = ranks, .data_parallel = 1});
    const StepShape shape{.tensor_parallel = ranks, .micro_batch_size = micro_batch_size};
    const MemoryPlan plan = plan_memory(config, shape);
    const auto predicted = static_cast<double>(plan.peak());
    const auto measured = static_cast<double>(testing::measured_peak(grid, config, shape));
    EXPECT_NEAR(predicted / measured, 1.0, 0.05)
        << "predicted " << predicted << " bytes, measured " << measured << "\n"
        << to_text(plan);
}

TEST(MemoryPlanOfRanks, PredictsThePeakOfEachRankWithinFivePercent) {
    expect_planned(testing::planned_model(), 1);
    expect_planned(testing::planned_model(), 4);
}

TEST(MemoryPlanOfRanks, CountsKeyValueHeadsThatRanksShare) {
    ModelConfig config = testing::planned_model();
    config.attention.num_kv_heads = 1;
    expect_planned(config, 2);
}

}  // namespace
}  // namespace evenkeel
