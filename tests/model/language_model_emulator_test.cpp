// What only the emulated GPU can count of a training step.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "framework/stream.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::random_batch;

std::uint64_t reserved_bytes() {
    cudaMemPool_t pool = nullptr;
    std::uint64_t bytes = 0;
    cudaDeviceGetDefaultMemPool(&pool, 0);
    cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes);
    return bytes;
}

class LanguageModelEmulatorTest : public ::testing::TestWithParam<bool> {};

TEST_P(LanguageModelEmulatorTest, AStepMakesTheHostWaitForNothingAndTakesNoNewMemory) {
    const Stream stream;
    const StreamScope scope(stream);
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {}, Device::kCuda);
    LanguageModel model(grid, testing::small_gpu_model(), 1);
    model.set_graphs(GetParam());
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, Device::kCuda);
    std::uint64_t reserved = 0;
    for (int step = 1; step <= 8; ++step) {
        const std::vector<Batch> batches = {random_batch(1, 17, 32, 2 * step),
                                            random_batch(1, 17, 32, 2 * step + 1)};
        gpu_emulator::reset_host_waits();
        compute_gradients(model, batches, numbers);
        adamw_step(model.buckets(), {}, 1e-2, 1.0, numbers, step);
        // Set up in the first step; with graphs, recorded in the fourth.
        const bool steady = step > (GetParam() ? 4 : 1);
        if (steady) {
            EXPECT_EQ(gpu_emulator::host_waits(), 0u) << "step " << step;
            EXPECT_EQ(reserved_bytes(), reserved) << "step " << step;
        }
        numbers.to(Device::kCpu);
        reserved = reserved_bytes();
    }
}

INSTANTIATE_TEST_SUITE_P(, LanguageModelEmulatorTest, ::testing::Bool(), [](const auto& info) {
    return info.param ? "Graphs" : "NoGraphs";
});

}  // namespace
}  // namespace evenkeel
