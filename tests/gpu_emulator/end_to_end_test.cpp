// Kernels that nvcc compiled, launched by the host code that nvcc made.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/gpu_emulator/end_to_end_kernels.h"
#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator::end_to_end {
namespace {

template <typename T>
class DeviceVector {
  public:
    explicit DeviceVector(const std::vector<T>& values) : DeviceVector(values.size()) {
        EXPECT_EQ(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
    }
    explicit DeviceVector(std::size_t size) : size_(size) {
        EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), cudaSuccess);
    }
    ~DeviceVector() { cudaFree(data_); }
    DeviceVector(const DeviceVector&) = delete;
    DeviceVector& operator=(const DeviceVector&) = delete;

    T* data() const { return data_; }
    std::size_t bytes() const { return size_ * sizeof(T); }
    std::vector<T> values() const {
        std::vector<T> host(size_);
        EXPECT_EQ(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
        return host;
    }

  private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

template <typename T>
std::vector<T> numbers(std::size_t n) {
    std::vector<T> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<T>((i * 37) % 101) - 50;
    return values;
}

TEST(EndToEnd, AddsVectorsOnAStream) {
    const int n = 1000;
    const std::vector<float> a = numbers<float>(n);
    DeviceVector<float> device_a(a), device_b(a), out(n);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    add(out.data(), device_a.data(), device_b.data(), n, stream);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    const std::vector<float> sums = out.values();
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(sums[i], 2 * a[i]) << "element " << i;
}

template <typename T>
void check_reduction() {
    const int blocks = 3;
    const std::vector<T> in = numbers<T>(256 * blocks);
    DeviceVector<T> device_in(in), out(blocks);
    reduce(out.data(), device_in.data(), blocks);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<T> sums = out.values();
    for (int block = 0; block < blocks; ++block) {
        T want = 0;
        for (int i = 0; i < 256; ++i) want += in[static_cast<std::size_t>(block * 256 + i)];
        EXPECT_EQ(sums[static_cast<std::size_t>(block)], want) << "block " << block;
    }
}

TEST(EndToEnd, ReducesThroughStaticSharedMemoryOfATemplate) {
    check_reduction<float>();
    check_reduction<double>();
}

TEST(EndToEnd, ReversesThroughDynamicSharedMemory) {
    const std::vector<float> in = numbers<float>(2 * 96);
    DeviceVector<float> data(in);
    reverse_blocks(data.data(), 2, 96, 96 * sizeof(float));
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> out = data.values();
    for (std::size_t i = 0; i < 96; ++i) {
        EXPECT_EQ(out[i], in[95 - i]) << "element " << i;
        EXPECT_EQ(out[96 + i], in[96 + 95 - i]) << "element " << 96 + i;
    }
}

TEST(EndToEnd, RunsGridsAndBlocksOfSeveralDimensions) {
    const int width = 21, height = 6, depth = 3;
    DeviceVector<int> out(width * height * depth);
    number_cells(out.data(), width, height, depth);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<int> cells = out.values();
    std::size_t at = 0;
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            for (int z = 0; z < depth; ++z) {
                ASSERT_EQ(cells[at++], 10000 * y + 100 * x + z) << x << ", " << y << ", " << z;
            }
        }
    }
}

TEST(EndToEnd, KeepsConstantAndGlobalVariables) {
    const int n = 8;
    DeviceVector<float> in(std::vector<float>(n, 3)), out(n);
    int calls = -1;
    ASSERT_EQ(get_calls(&calls), cudaSuccess);
    EXPECT_EQ(calls, 0);
    scale_by_constants(out.data(), in.data(), n);
    EXPECT_EQ(out.values(), (std::vector<float>{3.5, 6.5, 12.5, 24.5, 3.5, 6.5, 12.5, 24.5}));
    const float coefficients[] = {10, 20, 30, 40};
    ASSERT_EQ(set_coefficients(coefficients), cudaSuccess);
    ASSERT_EQ(set_bias(1), cudaSuccess);
    scale_by_constants(out.data(), in.data(), n);
    EXPECT_EQ(out.values(), (std::vector<float>{31, 61, 91, 121, 31, 61, 91, 121}));
    ASSERT_EQ(get_calls(&calls), cudaSuccess);
    EXPECT_EQ(calls, 2);
}

TEST(EndToEnd, ComputesElementaryFunctions) {
    const std::vector<float> in = {-3.5F, -0.001F, 0.75F, 1.0F, 12.25F, 0.3F, 1e5F, -2e5F};
    const std::size_t n = in.size();
    DeviceVector<float> device_in(in), out(n * kFunctions);
    functions(out.data(), device_in.data(), static_cast<int>(n));
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> values = out.values();
    for (std::size_t i = 0; i < n; ++i) {
        const double x = in[i];
        const double want[kFunctions] = {std::exp(x),
                                         std::log(std::abs(x)),
                                         std::sin(x),
                                         std::cos(x),
                                         std::sqrt(std::abs(x)),
                                         1 / std::sqrt(std::abs(x)),
                                         std::exp2(x),
                                         1 / x,
                                         std::max(x, 0.25),
                                         std::abs(x) / 3};
        for (std::size_t k = 0; k < kFunctions; ++k) {
            const float got = values[k * n + i];
            const auto rounded = static_cast<float>(want[k]);
            if (std::isinf(rounded)) {
                EXPECT_EQ(got, rounded) << "function " << k << " of " << x;
            } else {
                EXPECT_NEAR(got, want[k], 4e-7 * std::abs(want[k]) + 1e-7)
                    << "function " << k << " of " << x;
            }
        }
    }
}

TEST(EndToEnd, PassesStructsAndSmallIntegers) {
    DeviceVector<float> out(7);
    take_parameters({-5, 2.5, out.data(), {7, -8, 9}}, 200, -(3LL << 40));
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(out.values(), (std::vector<float>{-5, 2.5, 7, -8, 9, 200, -3}));
}

TEST(EndToEnd, FailsTheCallsAfterAKernelThatFailed) {
    DeviceVector<float> data(16);
    overrun(data.data(), 16);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    const std::vector<std::string> reports = take_reports();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_NE(reports[0].find("overrun_kernel"), std::string::npos) << reports[0];
    EXPECT_NE(reports[0].find("end_to_end_kernels.cu:"), std::string::npos) << reports[0];
    EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace gpu_emulator::end_to_end
