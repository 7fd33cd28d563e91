// What is said where no GPU can be used: no CUDA in the build, or the real CUDA runtime without a
// GPU.
#include <gtest/gtest.h>

#include <functional>

#include "framework/device.h"
#include "framework/stream.h"
#include "framework/tensor.h"
#include "framework/upload.h"

namespace evenkeel {
namespace {

class NoGpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (why_no_cuda().empty()) GTEST_SKIP() << "there is a GPU";
    }
};

TEST_F(NoGpuTest, ThereIsOneCpuAndNoGpu) {
    EXPECT_EQ(device_count(Device::kCpu), 1);
    EXPECT_EQ(device_count(Device::kCuda), 0);
}

TEST_F(NoGpuTest, EverythingSaysWhyInOneSentence) {
    const std::string why = why_no_cuda();
    EXPECT_EQ(why.find('\n'), std::string::npos);
    EXPECT_GT(why.size(), 20u);
    const std::function<void()> uses[] = {
        [] { Stream stream; },
        [] { Event event; },
        [] { UploadRing ring; },
        [] { Stream::current().synchronize(); },
        [] { Buffer(1, Device::kCuda); },
        [] {
            Tensor::zeros({2, 3}, DType::kBFloat16).to(Device::kCuda);
        },
    };
    for (const auto& use : uses) {
        try {
            use();
            ADD_FAILURE() << "no error";
        } catch (const Error& e) {
            const std::string got = e.what();
            EXPECT_TRUE(e.code() == ErrorCode::kCuda || e.code() == ErrorCode::kNotBuilt) << got;
            EXPECT_NE(got.find(e.code() == ErrorCode::kCuda ? why : "no CUDA back end"),
                      std::string::npos)
                << got << "\nwhy: " << why;
        }
    }
    EXPECT_EQ(Buffer::live_bytes(Device::kCuda), 0u);
}

}  // namespace
}  // namespace evenkeel
