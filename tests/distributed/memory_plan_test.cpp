#include <gtest/gtest.h>

#include "tests/support/devices.h"
#include "tests/support/measured_peak.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

void expect_planned(const ModelConfig& config,
                    std::int64_t micro_batch_size,
                    Device device = Device::kCpu,
                    std::int64_t seq_len = 256) {
    const std::int64_t ranks = testing::world().size();
    const ProcessGrid grid(
        testing::world(),
        {.tensor_parallel = ranks, .data_parallel = 1, .communication = Communication::kStaged},
        device);
    const StepShape shape{.device = device,
                          .tensor_parallel = ranks,
                          .micro_batch_size = micro_batch_size,
                          .seq_len = seq_len};
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

TEST(MemoryPlanOfRanks, PredictsThePeakOfEachGpuWithinFivePercent) {
    for (const Device device : testing::test_gpus()) {
        expect_planned(testing::planned_gpu_model(Activation::kSwiGlu), 2, device, 64);
    }
}

}  // namespace
}  // namespace evenkeel
