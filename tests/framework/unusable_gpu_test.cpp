// What is said of GPUs and drivers that cannot be used. The linker (--wrap) leads the library's
// three questions to the runtime here, so that a test can answer them.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "framework/cuda.h"
#include "framework/device.h"
#include "framework/error.h"

namespace {

struct Machine {
    cudaError_t count_error = cudaSuccess;
    int driver = 13000;
    std::vector<int> capabilities;  // 80: sm_80
};
const Machine* machine = nullptr;  // null: the one that runs the test

}  // namespace

extern "C" {
cudaError_t __real_cudaGetDeviceCount(int* count);
cudaError_t __real_cudaDriverGetVersion(int* version);
cudaError_t __real_cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

cudaError_t __wrap_cudaGetDeviceCount(int* count) {
    if (machine == nullptr) return __real_cudaGetDeviceCount(count);
    *count = static_cast<int>(machine->capabilities.size());
    return machine->count_error;
}
cudaError_t __wrap_cudaDriverGetVersion(int* version) {
    if (machine == nullptr) return __real_cudaDriverGetVersion(version);
    *version = machine->driver;
    return cudaSuccess;
}
cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (machine == nullptr) return __real_cudaDeviceGetAttribute(value, attribute, device);
    const int capability = machine->capabilities.at(static_cast<std::size_t>(device));
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? capability / 10 : capability % 10;
    return cudaSuccess;
}
}

namespace evenkeel {
namespace {

class UnusableGpuTest : public ::testing::Test {
  protected:
    ~UnusableGpuTest() override { machine = nullptr; }

    std::string why(const Machine& fake) {
        machine = &fake;
        const std::string text = why_no_cuda();
        count_ = device_count(Device::kCuda);
        machine = nullptr;
        return text;
    }
    int count_ = -1;
};

TEST_F(UnusableGpuTest, NoDriver) {
    EXPECT_EQ(why({cudaErrorInsufficientDriver, 0, {}}),
              "no NVIDIA driver is installed or visible here");
    EXPECT_EQ(count_, 0);
}

TEST_F(UnusableGpuTest, ADriverTooOldForThisBuild) {
    int runtime = 0;
    ASSERT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
    EXPECT_EQ(why({cudaErrorInsufficientDriver, 11040, {}}),
              concat("the NVIDIA driver is too old for this build: it supports CUDA 11.4, want ",
                     runtime / 1000, ".", runtime % 1000 / 10, " or later"));
    EXPECT_EQ(count_, 0);
}

TEST_F(UnusableGpuTest, ADriverWithoutAGpu) {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    EXPECT_EQ(why({cudaErrorNoDevice, 13000, {}}), "the NVIDIA driver finds no GPU");
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EXPECT_EQ(why({cudaErrorNoDevice, 13000, {}}),
              "the NVIDIA driver finds no GPU (CUDA_VISIBLE_DEVICES is \"\")");
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    EXPECT_EQ(count_, 0);
}

TEST_F(UnusableGpuTest, AGpuOlderThanSm80) {
    EXPECT_EQ(why({cudaSuccess, 13000, {75}}),
              "the GPU is too old: device 0 has compute capability 7.5, want 8.0 or higher");
    EXPECT_EQ(count_, 0);
}

TEST_F(UnusableGpuTest, OneUsableGpuAmongOldOnesIsEnough) {
    EXPECT_EQ(why({cudaSuccess, 13000, {75, 90, 86}}), "");
    EXPECT_EQ(count_, 2);
}

TEST_F(UnusableGpuTest, AnythingElseIsToldAsTheRuntimeTellsIt) {
    EXPECT_NE(why({cudaErrorSystemDriverMismatch, 13000, {}}).find("cudaErrorSystemDriverMismatch"),
              std::string::npos);
    EXPECT_EQ(count_, 0);
}

TEST_F(UnusableGpuTest, FailedCallsTellTheReasonInPlaceOfTheirOwn) {
    const Machine old{cudaSuccess, 13000, {70}};
    machine = &old;
    try {
        cuda::check(cudaErrorNoKernelImageForDevice, "flash_attention", "cudaLaunchKernel");
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kCuda);
        EXPECT_STREQ(e.what(),
                     "[flash_attention] no usable GPU: the GPU is too old: device 0 has compute "
                     "capability 7.0, want 8.0 or higher");
    }
    try {
        cuda::check(cudaErrorIllegalAddress, "flash_attention", "cudaStreamSynchronize");
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(),
                     "[flash_attention] cudaStreamSynchronize: cudaErrorIllegalAddress (an illegal "
                     "memory access was encountered)");
    }
}

}  // namespace
}  // namespace evenkeel
