#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "framework/tensor.h"
#include "tests/framework/launch_kernels.h"

namespace evenkeel {
namespace {

using testing::launch_both_memories;
using testing::launch_grid;
using testing::launch_number_threads;

std::string error_of(const auto& action, ErrorCode code) {
    try {
        action();
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), code) << e.what();
        return e.what();
    }
    return "no error";
}

void expect_numbered(std::int64_t blocks, int threads, std::size_t shared_bytes) {
    const Tensor out = Tensor::zeros({blocks * threads}, DType::kInt32, Device::kCuda);
    launch_number_threads(blocks, threads, shared_bytes, out.data<std::int32_t>());
    const Tensor got = out.to(Device::kCpu);
    for (std::int64_t i = 0; i < got.numel(); ++i) {
        ASSERT_EQ(got.data<std::int32_t>()[i], i) << shared_bytes << " bytes of shared memory";
    }
}

TEST(LaunchTest, RunsEveryThread) { expect_numbered(3, 64, 64 * 4); }

TEST(LaunchTest, GivesMoreThan48KibOfSharedMemory) {
    // 99 KiB: what every GPU from sm_80 on has.
    for (const std::size_t bytes : {48u << 10, 64u << 10, 99u << 10, 50u << 10}) {
        expect_numbered(1, 32, bytes);
    }
}

TEST(LaunchTest, CountsTheKernelsOwnSharedMemory) {
    // The second just fits without asking, the third does not, and no more do the last ones.
    for (const std::size_t bytes :
         {4u, (48u << 10) - 128u, (48u << 10) - 124u, 48u << 10, 50u << 10}) {
        const Tensor out = Tensor::zeros({32}, DType::kInt32, Device::kCuda);
        ASSERT_NO_THROW(launch_both_memories(bytes, out.data<std::int32_t>())) << bytes << " bytes";
        const Tensor got = out.to(Device::kCpu);
        for (int i = 0; i < 32; ++i) {
            ASSERT_EQ(got.data<std::int32_t>()[i], 31 - i + static_cast<int>(bytes / 4) - 1)
                << bytes << " bytes";
        }
    }
}

TEST(LaunchTest, LaunchesOfManyThreadsDoNotDisturbOneAnother) {
    std::vector<std::future<void>> threads;
    for (int i = 0; i < 4; ++i) {
        threads.push_back(
            std::async(std::launch::async, [i] { expect_numbered(2, 32, (50u + 10u * i) << 10); }));
    }
    for (std::future<void>& thread : threads) EXPECT_NO_THROW(thread.get());
}

TEST(LaunchTest, AnEmptyGridIsNoWork) {
    EXPECT_NO_THROW(launch_grid(0, 1, 1));
    EXPECT_NO_THROW(launch_grid(5, 0, 1));
    EXPECT_NO_THROW(launch_number_threads(0, 32, 1 << 20, nullptr));
}

TEST(LaunchTest, GridsBeyondTheLimitsAreRefused) {
    EXPECT_EQ(
        error_of([] { launch_grid(std::int64_t{1} << 31, 1, 1); }, ErrorCode::kInvalidArgument),
        "[nothing] grid: got [2147483648, 1, 1] blocks, want at most [2147483647, 65535, 65535]");
    EXPECT_EQ(error_of([] { launch_grid(1, 65536, 1); }, ErrorCode::kInvalidArgument),
              "[nothing] grid: got [1, 65536, 1] blocks, want at most [2147483647, 65535, 65535]");
    // Would be an empty grid if it were cut to 32 bits.
    EXPECT_NE(
        error_of([] { launch_grid(std::int64_t{1} << 32, 1, 1); }, ErrorCode::kInvalidArgument),
        "no error");
}

TEST(LaunchTest, ErrorsNameTheOperationAndTheKernel) {
    const Tensor out = Tensor::zeros({4096}, DType::kInt32, Device::kCuda);
    auto* data = out.data<std::int32_t>();
    const std::string threads =
        error_of([&] { launch_number_threads(1, 2048, 0, data); }, ErrorCode::kCuda);
    EXPECT_FALSE(testing::error_is_pending()) << "it would be reported again by a later call";
    EXPECT_NE(threads.find("[number] launch of "), std::string::npos) << threads;
    EXPECT_NE(threads.find("number_threads"), std::string::npos) << threads;
    EXPECT_NE(threads.find("block [2048, 1, 1]"), std::string::npos) << threads;
    const std::string shared =
        error_of([&] { launch_number_threads(1, 32, 1 << 20, data); }, ErrorCode::kCuda);
    EXPECT_NE(shared.find("[number] shared memory: got 1048576 bytes for "), std::string::npos)
        << shared;
    EXPECT_NE(shared.find("number_threads"), std::string::npos) << shared;
    EXPECT_FALSE(testing::error_is_pending());
    expect_numbered(1, 32, 128);
}

}  // namespace
}  // namespace evenkeel
