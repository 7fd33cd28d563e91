// The functions of the emulated runtime, without kernels but for small ones given as PTX text.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/gpu_emulator/end_to_end_kernels.h"
#include "tests/gpu_emulator/fatbin.h"
#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

constexpr const char* kPtx = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry store(.param .u64 p, .param .u32 value) .maxntid 64 {
    .reg .b64 %rd<2>; .reg .b32 %r<2>;
    ld.param.u64 %rd0, [p];
    ld.param.u32 %r0, [value];
    st.global.u32 [%rd0], %r0;
    ret;
}
)";

// The reports since the last call, joined.
std::string reports() {
    std::string all;
    for (const std::string& text : take_reports()) all += text + '\n';
    return all;
}

void expect_report(const std::string& part) {
    const std::string all = reports();
    EXPECT_NE(all.find(part), std::string::npos) << "got \"" << all << "\", want \"" << part << '"';
}

class Environment {
  public:
    Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
    ~Environment() { unsetenv(name_); }

  private:
    const char* name_;
};

class RuntimeApi : public ::testing::Test {
  protected:
    void SetUp() override {
        ASSERT_EQ(cudaMalloc(&device_, 64), cudaSuccess);
        ASSERT_EQ(cudaMemset(device_, 0, 64), cudaSuccess);
    }
    void TearDown() override {
        cudaGetLastError();
        EXPECT_EQ(cudaFree(device_), cudaSuccess);
        EXPECT_EQ(reports(), "");
    }
    void* device_ = nullptr;
    char host_[128] = {};
};

TEST_F(RuntimeApi, DescribesADeviceLikeTheFirstOneWithAsynchronousCopies) {
    int count = 0, value = 0;
    ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    EXPECT_EQ(count, 1);
    cudaDeviceProp all = {};
    ASSERT_EQ(cudaGetDeviceProperties(&all, 0), cudaSuccess);
    EXPECT_EQ(all.major, 8);
    EXPECT_EQ(all.minor, 0);
    EXPECT_EQ(all.multiProcessorCount, 108);
    EXPECT_EQ(all.warpSize, 32);
    EXPECT_EQ(all.sharedMemPerBlockOptin, 163u * 1024);
    EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    EXPECT_EQ(value, 108);
    EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 1),
              cudaErrorInvalidDevice);
    EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
    int driver = 0, runtime = 0;
    EXPECT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
    EXPECT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
    EXPECT_EQ(runtime, CUDART_VERSION);
    EXPECT_GE(driver, runtime);
}

TEST_F(RuntimeApi, CopiesRowsWithPitches) {
    for (int i = 0; i < 64; ++i) host_[i] = static_cast<char>(i);
    ASSERT_EQ(cudaMemcpy2D(device_, 16, host_, 8, 4, 3, cudaMemcpyHostToDevice), cudaSuccess);
    char out[64] = {};
    ASSERT_EQ(cudaMemcpy(out, device_, 64, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 64; ++i) {
        const int want = i < 48 && i % 16 < 4 ? i / 16 * 8 + i % 16 : 0;
        EXPECT_EQ(out[i], want) << "byte " << i;
    }
    EXPECT_EQ(cudaMemcpy2D(device_, 2, host_, 8, 4, 3, cudaMemcpyHostToDevice),
              cudaErrorInvalidPitchValue);
    ASSERT_EQ(cudaMemset2DAsync(device_, 16, 7, 2, 4, nullptr), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(out, device_, 64, cudaMemcpyDefault), cudaSuccess);
    EXPECT_EQ(out[48], 7);
    EXPECT_EQ(out[50], 0);
}

TEST_F(RuntimeApi, ReportsCopiesPastTheEnd) {
    EXPECT_EQ(cudaMemcpy(device_, host_, 65, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    EXPECT_NE(reports(), "");
    EXPECT_EQ(cudaMemcpyAsync(host_, static_cast<char*>(device_) + 60, 5, cudaMemcpyDeviceToHost,
                              nullptr),
              cudaErrorInvalidValue);
    EXPECT_NE(reports(), "");
    EXPECT_EQ(cudaMemset(device_, 0, 65), cudaErrorInvalidValue);
    EXPECT_NE(reports(), "");
}

TEST_F(RuntimeApi, ReportsPointersOfTheWrongSide) {
    EXPECT_EQ(cudaMemcpy(host_, host_, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    expect_report("is host to host");
    EXPECT_EQ(cudaMemcpy(device_, device_, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    expect_report("is device to device");
    EXPECT_EQ(cudaMemcpyAsync(device_, host_, 4, cudaMemcpyDeviceToDevice, nullptr),
              cudaErrorInvalidValue);
    expect_report("cudaMemcpyAsync: kind is device to device");
}

TEST_F(RuntimeApi, ReportsWrongFrees) {
    EXPECT_EQ(cudaFree(static_cast<char*>(device_) + 8), cudaErrorInvalidValue);
    expect_report("cudaFree");
    EXPECT_EQ(cudaFreeHost(host_), cudaErrorInvalidValue);
    expect_report("cudaFreeHost");
    EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
    void* twice = nullptr;
    ASSERT_EQ(cudaMallocAsync(&twice, 8, nullptr), cudaSuccess);
    EXPECT_EQ(cudaFreeAsync(twice, nullptr), cudaSuccess);
    EXPECT_EQ(cudaFreeAsync(twice, nullptr), cudaErrorInvalidValue);
    expect_report("cudaFreeAsync");
}

TEST_F(RuntimeApi, RunsOutOfMemory) {
    void* much = device_;
    EXPECT_EQ(cudaMalloc(&much, std::size_t{1} << 50), cudaErrorMemoryAllocation);
    EXPECT_EQ(much, nullptr);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    std::size_t before = 0, after = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&much, 1000), cudaSuccess);
    ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
    EXPECT_EQ(before - after, 1000u);
    EXPECT_EQ(cudaFree(much), cudaSuccess);
}

TEST_F(RuntimeApi, TellsPointersApart) {
    void* pinned = nullptr;
    ASSERT_EQ(cudaMallocHost(&pinned, 100), cudaSuccess);
    cudaPointerAttributes attributes = {};
    ASSERT_EQ(cudaPointerGetAttributes(&attributes, device_), cudaSuccess);
    EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
    ASSERT_EQ(cudaPointerGetAttributes(&attributes, static_cast<char*>(pinned) + 99), cudaSuccess);
    EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
    ASSERT_EQ(cudaPointerGetAttributes(&attributes, host_), cudaSuccess);
    EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
    EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(RuntimeApi, KnowsLivingStreamsAndRecordedEvents) {
    cudaStream_t stream = nullptr;
    cudaEvent_t from = nullptr, to = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&from), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&to), cudaSuccess);
    float milliseconds = -1;
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, from, to), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventRecord(from, nullptr), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(stream, from, 0), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(to, stream), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(to), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, from, to), cudaSuccess);
    EXPECT_GE(milliseconds, 0);
    EXPECT_EQ(cudaEventDestroy(from), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(from, stream), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventDestroy(to), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaMemsetAsync(device_, 0, 4, stream), cudaErrorInvalidResourceHandle);
}

TEST_F(RuntimeApi, LaunchesPtxText) {
    cudaLibrary_t library = nullptr;
    cudaKernel_t kernel = nullptr;
    ASSERT_EQ(cudaLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
              cudaSuccess);
    EXPECT_EQ(cudaLibraryGetKernel(&kernel, library, "nothing"), cudaErrorSymbolNotFound);
    ASSERT_EQ(cudaLibraryGetKernel(&kernel, library, "store"), cudaSuccess);
    unsigned value = 0xabcd1234;
    void* arguments[] = {&device_, &value};
    ASSERT_EQ(cudaLaunchKernel(kernel, 1, 1, arguments, 0, nullptr), cudaSuccess);
    unsigned stored = 0;
    ASSERT_EQ(cudaMemcpy(&stored, device_, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(stored, value);
    EXPECT_EQ(cudaLaunchKernel(kernel, 1, 65, arguments, 0, nullptr), cudaErrorInvalidValue);
    ASSERT_EQ(cudaLibraryUnload(library), cudaSuccess);
    EXPECT_EQ(cudaLibraryUnload(library), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaLaunchKernel(kernel, 1, 1, arguments, 0, nullptr),
              cudaErrorInvalidDeviceFunction);
}

TEST_F(RuntimeApi, ReportsPtxThatItCannotRun) {
    cudaLibrary_t library = nullptr;
    const auto load = [&](const std::string& ptx) {
        return cudaLibraryLoadData(&library, ptx.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    };
    EXPECT_EQ(load(".version 8.0\n.mystery"), cudaErrorInvalidPtx);
    expect_report("ptx line 2: unknown statement '.mystery'");
    EXPECT_EQ(load(std::string(".entry k() {\n.reg .f32 %f<2>;\nmystery.approx.f32 %f0, %f1;\n}")),
              cudaErrorInvalidPtx);
    expect_report("mystery.approx.f32");
    EXPECT_EQ(library, nullptr);
}

TEST_F(RuntimeApi, ChecksLaunchShapes) {
    using end_to_end::reverse_kernel;
    void* arguments[] = {&device_};
    const auto launch = [&](dim3 grid, dim3 block, std::size_t shared_bytes) {
        return cudaLaunchKernel(reverse_kernel, grid, block, arguments, shared_bytes, nullptr);
    };
    EXPECT_EQ(launch(0, 1, 64), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(1, dim3(1, 0), 64), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(1, 1025, 64), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(1, dim3(1, 1, 65), 64), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(dim3(1, 65536), 1, 64), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(1, 1, (48 << 10) + 1), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    EXPECT_EQ(cudaLaunchKernel(nullptr, 1, 1, arguments, 0, nullptr),
              cudaErrorInvalidDeviceFunction);
    end_to_end::bounded(65);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    end_to_end::bounded(64);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(RuntimeApi, AllowsMuchSharedMemoryOnlyToKernelsThatAskForIt) {
    using end_to_end::reverse_kernel;
    const auto allow = [](int bytes) {
        return cudaFuncSetAttribute(reverse_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    bytes);
    };
    EXPECT_EQ(allow((163 << 10) + 1), cudaErrorInvalidValue);
    ASSERT_EQ(allow(100 << 10), cudaSuccess);
    cudaFuncAttributes attributes = {};
    ASSERT_EQ(cudaFuncGetAttributes(&attributes, reverse_kernel), cudaSuccess);
    EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, 100 << 10);
    EXPECT_EQ(attributes.sharedSizeBytes, 0u);
    EXPECT_EQ(attributes.maxThreadsPerBlock, 1024);
    int blocks = 0;
    ASSERT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reverse_kernel, 128, 80 << 10),
              cudaSuccess);
    EXPECT_EQ(blocks, 2);
    void* arguments[] = {&device_};
    EXPECT_EQ(cudaLaunchKernel(reverse_kernel, 1, 1, arguments, 100 << 10, nullptr), cudaSuccess);
    EXPECT_EQ(cudaLaunchKernel(reverse_kernel, 1, 1, arguments, (100 << 10) + 1, nullptr),
              cudaErrorInvalidValue);
    const char* name = nullptr;
    ASSERT_EQ(cudaFuncGetName(&name, reverse_kernel), cudaSuccess);
    EXPECT_NE(std::string(name).find("reverse"), std::string::npos) << name;
    ASSERT_EQ(allow(0), cudaSuccess);
}

TEST_F(RuntimeApi, PlaysAMachineWithoutAUsableGpu) {
    int count = 7;
    {
        const Environment state("EVENKEEL_EMULATED_GPU_STATE", "no_device");
        EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
        EXPECT_EQ(count, 0);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorNoDevice);
        EXPECT_STREQ(cudaGetErrorName(cudaGetLastError()), "cudaErrorNoDevice");
        EXPECT_STREQ(cudaGetErrorString(cudaErrorNoDevice), "no CUDA-capable device is detected");
    }
    {
        const Environment state("EVENKEEL_EMULATED_GPU_STATE", "old_driver");
        EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
        int driver = 0, runtime = 0;
        EXPECT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
        EXPECT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
        EXPECT_LT(driver, runtime);
    }
    {
        const Environment state("EVENKEEL_EMULATED_GPU_STATE", "broken");
        EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInitializationError);
        expect_report("want no_device or old_driver");
    }
    cudaGetLastError();
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    EXPECT_EQ(count, 1);
}

TEST_F(RuntimeApi, PlaysANewerDevice) {
    const Environment arch("EVENKEEL_EMULATOR_ARCH", "90");
    int major = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    EXPECT_EQ(major, 9);
}

TEST_F(RuntimeApi, ListsTheMachineCodeOfTheProgram) {
    for (const int arch : {80, 90}) {
        const auto cubins = registered_cubins(arch);
        ASSERT_FALSE(cubins.empty()) << "sm_" << arch;
        for (const std::string_view cubin : cubins) EXPECT_EQ(cubin.substr(1, 3), "ELF");
    }
    EXPECT_TRUE(registered_cubins(10).empty());
}

}  // namespace
}  // namespace gpu_emulator
