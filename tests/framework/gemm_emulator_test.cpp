// What only the emulated GPU can tell of products.
#include <gtest/gtest.h>

#include "framework/gemm.h"
#include "framework/stream.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::on;
using testing::same_bits;

TEST(GemmEmulatorTest, NeverMakesTheHostWait) {
    const Tensor a = on(Device::kCuda, gaussian({31, 21}, DType::kBFloat16, 1));
    const Tensor b = on(Device::kCuda, gaussian({21, 27}, DType::kBFloat16, 2));
    const Tensor c = Tensor::zeros({31, 27}, DType::kFloat32, Device::kCuda);
    const Tensor wide_a = a.to(DType::kFloat32), wide_b = b.to(DType::kFloat32);
    const Tensor narrow_c = c.to(DType::kBFloat16);
    const auto before = gpu_emulator::host_waits();
    for (int i = 0; i < 2; ++i) {
        gemm(a, b, c, {.accumulate = true});
        gemm(wide_a, wide_b, narrow_c);
    }
    EXPECT_EQ(gpu_emulator::host_waits(), before);
}

// Copies a over an operand on one stream and multiplies on another, under one order of work.
bool multiplies_what_was_copied(bool with_event, std::uint64_t seed) {
    gpu_emulator::set_seed(seed);
    const Tensor a = on(Device::kCuda, gaussian({33, 20}, DType::kFloat32, 1));
    const Tensor b = on(Device::kCuda, gaussian({20, 17}, DType::kFloat32, 2));
    const Tensor want = Tensor::zeros({33, 17}, DType::kFloat32, Device::kCuda);
    const Tensor got = want.clone(),
                 operand = Tensor::zeros({33, 20}, DType::kFloat32, Device::kCuda);
    gemm(a, b, want);
    Stream::current().synchronize();
    const Stream copying, multiplying;
    Event copied;
    {
        const StreamScope scope(copying);
        operand.copy_from(a);
        copied.record(copying);
    }
    if (with_event) multiplying.wait(copied);
    {
        const StreamScope scope(multiplying);
        gemm(operand, b, got);
    }
    multiplying.synchronize();
    copying.synchronize();
    return static_cast<bool>(same_bits(got, want));
}

TEST(GemmEmulatorTest, AMissingEventGivesWrongProductsUnderSomeOrder) {
    int right_with_event = 0, right_without = 0;
    constexpr int kOrders = 20;
    for (std::uint64_t seed = 1; seed <= kOrders; ++seed) {
        right_with_event += multiplies_what_was_copied(true, seed);
        EXPECT_TRUE(gpu_emulator::take_reports().empty()) << "seed " << seed;
        right_without += multiplies_what_was_copied(false, seed);
        EXPECT_FALSE(gpu_emulator::take_reports().empty()) << "seed " << seed;
    }
    gpu_emulator::set_seed(1);
    EXPECT_EQ(right_with_event, kOrders);
    EXPECT_LT(right_without, kOrders);
}

}  // namespace
}  // namespace evenkeel
