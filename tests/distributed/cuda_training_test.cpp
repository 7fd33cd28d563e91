// Training over several ranks with a GPU each, against the same on CPUs.
#include <gtest/gtest.h>

#include <optional>

#include "framework/stream.h"
#include "tests/support/compare.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::small_gpu_model;
using testing::SoloGrid;
using testing::train_steps;
using testing::TrainingCurve;
using testing::world;

struct Layout {
    const char* name;
    bool tensor_parallel;  // else data parallel
    Communication communication;
    bool sequence_parallel = false;
};

class CudaTrainingTest : public ::testing::TestWithParam<Layout> {
  protected:
    void SetUp() override {
        if (GetParam().communication == Communication::kNccl &&
            device_count(Device::kCuda) < world().size()) {
            GTEST_SKIP() << "NCCL needs a GPU for each rank";
        }
        config_.tensor_parallel = GetParam().tensor_parallel ? world().size() : 1;
        config_.communication = GetParam().communication;
        config_.sequence_parallel = GetParam().sequence_parallel;
        grid_ = std::make_unique<ProcessGrid>(world(), config_, Device::kCuda);
        stream_.emplace();
        scope_.emplace(*stream_);
    }
    // Same bits on all ranks of the group.
    static bool agrees(Communicator& group, const Tensor& tensor) {
        const Tensor mine = tensor.to(Device::kCpu).contiguous().view({tensor.numel()});
        const Tensor all = Tensor::uninitialized({group.size(), mine.numel()}, tensor.dtype());
        group.host().all_gather(mine, all);
        for (int rank = 0; rank < group.size(); ++rank) {
            if (!testing::same_bits(all.slice(0, rank, rank + 1).view({mine.numel()}), mine)) {
                return false;
            }
        }
        return true;
    }

    ParallelConfig config_;
    std::unique_ptr<ProcessGrid> grid_;  // chooses this rank's GPU, so it comes first
    std::optional<Stream> stream_;
    std::optional<StreamScope> scope_;
};

TEST_P(CudaTrainingTest, FollowsTheCpu) {
    for (const QkNormConfig::Gain gain :
         {QkNormConfig::Gain::kPerHeadChannel, QkNormConfig::Gain::kSharedChannel}) {
        const bool per_head = gain == QkNormConfig::Gain::kPerHeadChannel;
        SCOPED_TRACE(per_head ? "per-head gains" : "shared gains");
        ModelConfig config = small_gpu_model();
        config.attention.qk_norm.gain = gain;
        config.attention.qkv_bias = config.attention.output_bias = config.feed_forward_bias =
            per_head;
        const ProcessGrid cpu_grid(world(), config_);
        LanguageModel gpu(*grid_, config, 1), cpu(cpu_grid, config, 1);
        config.type = ComputeType::kFp32;
        const SoloGrid solo;
        LanguageModel exact(solo.grid, config, 1);
        const int steps = per_head ? 5 : 2;
        const TrainingCurve got = train_steps(gpu, 0, steps), rounded = train_steps(cpu, 0, steps),
                            want = train_steps(exact, 0, steps);
        testing::expect_follows(got, want, rounded);
        EXPECT_LT(got.losses.back(), got.losses.front());
        for (const Parameter* parameter : gpu.parameters()) {
            EXPECT_TRUE(agrees(grid_->data(), parameter->value)) << parameter->name;
            if (parameter->sharding.kind != Sharding::Kind::kReplicated) continue;
            EXPECT_TRUE(agrees(grid_->tensor(), parameter->master)) << parameter->name;
        }
    }
}

TEST_P(CudaTrainingTest, FollowsTheCpuCloselyInFp32) {
    ModelConfig config = small_gpu_model();
    config.type = ComputeType::kFp32;
    config.num_layers = 1;
    config.attention.qkv_bias = config.attention.output_bias = config.feed_forward_bias = true;
    const ProcessGrid cpu_grid(world(), config_);
    LanguageModel gpu(*grid_, config, 1), cpu(cpu_grid, config, 1);
    const TrainingCurve got = train_steps(gpu, 0, 2, 2, 16);
    testing::expect_follows_in_fp32(got, train_steps(cpu, 0, 2, 2, 16));
    for (const Parameter* parameter : gpu.parameters()) {
        EXPECT_TRUE(agrees(grid_->data(), parameter->value)) << parameter->name;
    }
}

TEST_P(CudaTrainingTest, CommunicatesAsOftenAsOnTheCpu) {
    const ModelConfig config = small_gpu_model();
    LanguageModel model(*grid_, config, 1);
    CommunicationCounts& counts = grid_->tensor().counts();
    counts = {};
    testing::forward_backward(model, testing::part_of(testing::random_batch(2, 33, 32, 1), model));
    // Two sums a layer each way; embedding, the loss's two, and the projection's input gradient.
    const bool cut = grid_->sequence_parallel();
    const std::int64_t sums = 4 * config.num_layers + 2;
    EXPECT_EQ(counts.all_reduces, (cut ? 0 : sums) + 2);
    EXPECT_EQ(counts.reduce_scatters, cut ? sums : 0);
    // What has been scattered is gathered; inputs of products once more in backward.
    EXPECT_EQ(counts.all_gathers, cut ? sums + 2 * config.num_layers + 1 : 0);
    EXPECT_EQ(counts.broadcasts, 0);
}

INSTANTIATE_TEST_SUITE_P(
    ,
    CudaTrainingTest,
    ::testing::Values(Layout{"TensorParallelNccl", true, Communication::kNccl},
                      Layout{"DataParallelNccl", false, Communication::kNccl},
                      Layout{"TensorParallelStaged", true, Communication::kStaged},
                      Layout{"DataParallelStaged", false, Communication::kStaged},
                      Layout{"SequenceParallelNccl", true, Communication::kNccl, true},
                      Layout{"SequenceParallelStaged", true, Communication::kStaged, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace evenkeel
