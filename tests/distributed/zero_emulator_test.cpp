// Optimizer state that is cut over emulated GPUs: what the host waits for, and streams that do their work late.
#include <gtest/gtest.h>

#include "framework/stream.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/compare.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::world;

class ZeroEmulatorTest : public ::testing::Test {
  protected:
    void TearDown() override { gpu_emulator::set_seed(1); }

    const ProcessGrid grid_{world(), {.tensor_parallel = 1, .zero_stage = 1}, Device::kCuda};
    const Stream stream_;
    const StreamScope scope_{stream_};
    const Tensor numbers_ = Tensor::zeros({2}, DType::kFloat64, Device::kCuda);

    static ModelConfig config() {
        ModelConfig config = testing::small_gpu_model();
        config.num_layers = 1;
        return config;
    }
    void step(LanguageModel& model, int number) {
        const Batch batch =
            testing::part_of(testing::random_batch(world().size(), 16, 32, 1), model);
        compute_gradients(model, {&batch, 1}, numbers_);
        adamw_step(model.buckets(), {}, 1e-2, 1.0, numbers_, number);
        model.finish_update();
    }
};

TEST_F(ZeroEmulatorTest, AStepWaitsForNothingOnceItsPassesAreRecorded) {
    LanguageModel model(grid_, config(), 1);
    for (int number = 1; number <= 4; ++number) step(model, number);
    stream_.synchronize();
    gpu_emulator::reset_host_waits();
    step(model, 5);
    EXPECT_EQ(gpu_emulator::host_waits(), 0u);
    stream_.synchronize();
    EXPECT_TRUE(gpu_emulator::take_reports().empty());
}

// Gathers that a forward pass does not wait for, or scattered gradients that an update does not, would show.
TEST_F(ZeroEmulatorTest, EveryOrderOfStreamsGivesTheSameWeights) {
    std::vector<Tensor> first;
    for (const std::uint64_t seed : {1u, 7u}) {
        gpu_emulator::set_seed(seed);
        LanguageModel model(grid_, config(), 1);
        for (int number = 1; number <= 2; ++number) step(model, number);
        for (std::size_t i = 0; i < model.parameters().size(); ++i) {
            const Tensor value = model.parameters()[i]->value.to(Device::kCpu).clone();
            if (seed == 1) {
                first.push_back(value);
            } else {
                EXPECT_TRUE(testing::same_bits(value, first[i])) << model.parameters()[i]->name;
            }
        }
    }
    EXPECT_TRUE(gpu_emulator::take_reports().empty());
}

}  // namespace
}  // namespace evenkeel
