// Training on GPUs with the optimizer's state cut over two data-parallel ranks has the bits of training without, pass
// by pass and replayed from graphs.
#include <gtest/gtest.h>

#include <optional>

#include "framework/stream.h"
#include "tests/support/compare.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::same_bits;
using testing::world;

class ZeroCudaTest : public ::testing::TestWithParam<Communication> {
  protected:
    void SetUp() override {
        if (GetParam() == Communication::kNccl && device_count(Device::kCuda) < world().size()) {
            GTEST_SKIP() << "NCCL needs a GPU for each rank";
        }
        for (const std::int64_t stage : {0, 1}) {
            grids_[stage] = std::make_unique<ProcessGrid>(
                world(),
                ParallelConfig{
                    .tensor_parallel = 1, .communication = GetParam(), .zero_stage = stage},
                Device::kCuda);
        }
        stream_.emplace();
        scope_.emplace(*stream_);
    }

    // Losses and squared norms.
    static std::vector<double> train(LanguageModel& model, int steps) {
        const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, Device::kCuda);
        const Batch batch =
            testing::part_of(testing::random_batch(world().size(), 16, 32, 1), model);
        std::vector<double> curve;
        for (int step = 1; step <= steps; ++step) {
            compute_gradients(model, {&batch, 1}, numbers);
            adamw_step(model.buckets(), {}, 1e-2, 1.0, numbers, step);
            model.finish_update();
            const Tensor host = numbers.to(Device::kCpu);
            curve.insert(curve.end(), host.data<double>(), host.data<double>() + 2);
        }
        return curve;
    }

    std::unique_ptr<ProcessGrid> grids_[2];
    std::optional<Stream> stream_;
    std::optional<StreamScope> scope_;
};

TEST_P(ZeroCudaTest, StepsHaveTheBitsOfThoseWithoutCuts) {
    ModelConfig config = testing::small_gpu_model();
    config.num_layers = 1;
    config.attention.qk_norm.gain_bound = 20.0;  // a rule keeps the gains whole
    LanguageModel want(*grids_[0], config, 1), got(*grids_[1], config, 1);
    ASSERT_TRUE(got.buckets().is_cut());
    // Where they can be, passes are recorded in the fourth step.
    const int steps = GetParam() == Communication::kNccl ? 5 : 2;
    const std::vector<double> curve = train(got, steps);
    EXPECT_EQ(curve, train(want, steps));
    EXPECT_NE(curve.front(), curve[curve.size() - 2]);
    EXPECT_EQ(got.head_metrics().size(), want.head_metrics().size());
    for (std::size_t i = 0; i < got.parameters().size(); ++i) {
        const Parameter &cut = *got.parameters()[i], &whole = *want.parameters()[i];
        EXPECT_TRUE(same_bits(cut.value.to(Device::kCpu), whole.value.to(Device::kCpu)))
            << cut.name << " (value)";
        const FlatRange held = cut.held();
        for (Tensor Parameter::*member :
             {&Parameter::master, &Parameter::exp_avg, &Parameter::exp_avg_sq}) {
            const Tensor all = (whole.*member).to(Device::kCpu).view({(whole.*member).numel()});
            EXPECT_TRUE(same_bits((cut.*member).to(Device::kCpu).view({held.size()}),
                                  all.slice(0, held.begin, held.end)))
                << cut.name;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(,
                         ZeroCudaTest,
                         ::testing::Values(Communication::kNccl, Communication::kStaged),
                         [](const auto& info) {
                             return info.param == Communication::kNccl ? "Nccl" : "Staged";
                         });

}  // namespace
}  // namespace evenkeel
