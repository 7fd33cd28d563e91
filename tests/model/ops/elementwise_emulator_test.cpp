// What only the emulator can show of the element-wise kernels: any order of threads gives the same
// bits, and memory is moved in whole sectors, once.
#include <string>

#include "model/ops/elementwise.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel::testing {
namespace {

constexpr DType kBf16 = DType::kBFloat16, kFp32 = DType::kFloat32;

// y, rstd, dx, dgain.
std::vector<Tensor> rms_norm(Device device, std::int64_t count, std::int64_t width, DType dtype) {
    const auto there = [&](const Tensor& tensor) { return on(device, tensor); };
    const Shape shape{count, width};
    const Tensor x = there(gaussian(shape, dtype, 1)), dy = there(gaussian(shape, dtype, 2));
    const Tensor gain = there(gaussian({width}, kFp32, 3));
    const Tensor y = there(poisoned(shape, dtype)), rstd = there(poisoned({count}, kFp32));
    const Tensor dx = there(poisoned(shape, dtype)), dgain = there(Tensor::zeros({width}, kFp32));
    rms_norm_forward(x, gain, 1e-6, y, rstd);
    rms_norm_backward(dy, x, gain, rstd, false, dx, dgain);
    return {y, rstd, dx, dgain};
}

// y, statistics, dx, dgain, dbias.
std::vector<Tensor> layer_norm(Device device, std::int64_t count, std::int64_t width, DType dtype) {
    const auto there = [&](const Tensor& tensor) { return on(device, tensor); };
    const Shape shape{count, width};
    const Tensor x = there(gaussian(shape, dtype, 1)), dy = there(gaussian(shape, dtype, 2));
    const Tensor gain = there(gaussian({width}, kFp32, 3)),
                 bias = there(gaussian({width}, kFp32, 4));
    const Tensor y = there(poisoned(shape, dtype)), statistics = there(poisoned({2, count}, kFp32));
    const Tensor dx = there(poisoned(shape, dtype)), dgain = there(Tensor::zeros({width}, kFp32));
    const Tensor dbias = there(Tensor::zeros({width}, kFp32));
    layer_norm_forward(x, gain, bias, 1e-6, y, statistics, 0.5);
    layer_norm_backward(dy, x, gain, statistics, false, dx, dgain, dbias, 0.5);
    return {y, statistics, dx, dgain, dbias};
}

// Rows of one warp and of several, and several partial sums of the gain's gradient, the last of one row.
constexpr std::int64_t kRows = 33, kWidths[] = {40, 1032};

using MakeNorm = std::vector<Tensor>(Device, std::int64_t, std::int64_t, DType);

void expect_as_on_cpu(MakeNorm& norm) {
    for (const std::int64_t width : kWidths) {
        const auto want = norm(Device::kCpu, kRows, width, kBf16);
        const auto got = norm(Device::kCuda, kRows, width, kBf16);
        for (std::size_t i = 0; i < want.size(); ++i) {
            const bool rounded = want[i].dtype() == kBf16;
            EXPECT_TRUE(near(got[i], want[i], rounded ? 1.0 / 128 : 1e-5, 1e-4))
                << "result " << i << ", width " << width;
        }
    }
}

TEST(ElementwiseEmulated, RmsNormAgreesWithTheCpu) { expect_as_on_cpu(rms_norm); }
TEST(ElementwiseEmulated, LayerNormAgreesWithTheCpu) { expect_as_on_cpu(layer_norm); }

TEST(ElementwiseEmulated, OrderOfThreadsDoesNotMatter) {
    for (MakeNorm* norm : {&rms_norm, &layer_norm}) {
        for (const std::int64_t width : kWidths) {
            gpu_emulator::set_seed(0);
            const auto want = norm(Device::kCuda, kRows, width, kBf16);
            for (const std::uint64_t seed : {1, 2, 3}) {
                gpu_emulator::set_seed(seed);
                const auto got = norm(Device::kCuda, kRows, width, kBf16);
                for (std::size_t i = 0; i < want.size(); ++i) {
                    EXPECT_TRUE(same_bits(got[i], want[i]))
                        << "result " << i << ", width " << width << ", seed " << seed;
                }
            }
        }
    }
    EXPECT_EQ(gpu_emulator::report_count(), 0u);
}

// Sectors of 32 bytes and bytes that the one kernel with this in its name asked for.
gpu_emulator::Counters counters_of(const std::string& name) {
    for (const auto& [kernel, counters] : gpu_emulator::counters()) {
        if (kernel.find(name) != std::string::npos) return counters;
    }
    ADD_FAILURE() << "no launch of " << name;
    return {};
}

void expect_bytes_in_whole_sectors(const std::string& kernel, std::uint64_t bytes) {
    const gpu_emulator::Counters counters = counters_of(kernel);
    EXPECT_EQ(counters.global_bytes, bytes) << kernel;
    EXPECT_EQ(counters.global_sectors, bytes / 32) << kernel;
}

TEST(ElementwiseEmulated, ActivationsMoveEveryElementInWholeSectorsOnce) {
    for (const DType dtype : {kBf16, kFp32}) {
        SCOPED_TRACE(evenkeel::name_of(dtype));
        const Tensor wide = on(Device::kCuda, gaussian({4, 512}, dtype, 1));
        const Tensor half = on(Device::kCuda, gaussian({4, 256}, dtype, 2));
        const std::uint64_t bytes = half.bytes();
        gpu_emulator::reset_counters();
        swiglu_forward(wide, half);
        swiglu_backward(half, wide, wide);
        gelu_forward(half, half);
        expect_bytes_in_whole_sectors("gated_forward_kernel", 3 * bytes);
        expect_bytes_in_whole_sectors("gated_backward_kernel", 5 * bytes);
        expect_bytes_in_whole_sectors("map_kernel", 2 * bytes);
        gpu_emulator::reset_counters();
        gelu_backward(half, half, half);
        expect_bytes_in_whole_sectors("map_kernel", 3 * bytes);
        gpu_emulator::reset_counters();
        add_in_place(half, half);
        expect_bytes_in_whole_sectors("map_kernel", 3 * bytes);
    }
}

// Whole chunks only: x, y, dy and dx once each. The gain, twice in the backward pass, comes from L1; its 8
// floats beside 8 bf16 are two accesses, which share their sectors. The lanes of a warp read or write rstd
// together.
TEST(ElementwiseEmulated, RmsNormReadsEveryRowOnce) {
    const std::uint64_t rows = 16, width = 2048;
    for (const DType dtype : {kBf16, kFp32}) {
        SCOPED_TRACE(evenkeel::name_of(dtype));
        const std::uint64_t warps = dtype == kBf16 ? 4 : 8;
        const std::uint64_t row = width * size_of(dtype) / 32;
        const std::uint64_t floats = width * 4 / 32, gain = dtype == kBf16 ? 2 * floats : floats;
        gpu_emulator::reset_counters();
        rms_norm(Device::kCuda, rows, width, dtype);
        EXPECT_EQ(counters_of("norm_forward_kernel").global_sectors, rows * (2 * row + gain + 1));
        EXPECT_EQ(counters_of("norm_backward_kernel").global_sectors,
                  rows * (3 * row + 2 * gain + warps) + gain)
            << "with one row of partial sums";
        EXPECT_EQ(counters_of("norm_gain_kernel").global_sectors, 3 * floats);
    }
}

}  // namespace
}  // namespace evenkeel::testing
