// What only the emulated GPU can tell of the optimizer.
#include <gtest/gtest.h>

#include "framework/optimizer/adamw.h"
#include "framework/optimizer/gradient_norm.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/parameters.h"

namespace evenkeel {
namespace {

TEST(OptimizerEmulatorTest, NeverMakesTheHostWait) {
    Parameter parameter =
        declare_parameter("w", {70, 300}, Sharding::replicated(0, 1), DType::kBFloat16);
    const ParameterBuckets buckets({&parameter}, Device::kCuda);
    const Tensor numbers = testing::step_numbers(1.0, 0.0).to(Device::kCuda);
    const Tensor squared_norm = numbers.slice(0, kSquaredNormIndex, kSquaredNormIndex + 1);
    const auto before = gpu_emulator::host_waits();
    for (int step = 1; step <= 2; ++step) {
        buckets.zero_gradients();
        squared_norm.zero();
        add_squared_gradient_norm(buckets, squared_norm);
        adamw_step(buckets, {}, 0.01, 1.0, numbers, step);
    }
    EXPECT_EQ(gpu_emulator::host_waits(), before);
}

}  // namespace
}  // namespace evenkeel
