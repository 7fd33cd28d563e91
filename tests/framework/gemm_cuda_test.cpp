// Products in streams and graphs of CUDA.
#include <gtest/gtest.h>

#include "framework/gemm.h"
#include "framework/graph.h"
#include "framework/stream.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::near;
using testing::on;
using testing::same_bits;

TEST(GemmCudaTest, GraphsRepeatProducts) {
    const Stream stream;
    const StreamScope scope(stream);
    const Tensor a = on(Device::kCuda, gaussian({40, 24}, DType::kBFloat16, 1));
    const Tensor b = on(Device::kCuda, gaussian({24, 56}, DType::kBFloat16, 2));
    const Tensor once = Tensor::zeros({40, 56}, DType::kFloat32, Device::kCuda);
    const Tensor sum = once.clone();
    gemm(a, b, once);
    const Graph graph = Graph::capture(stream, [&] { gemm(a, b, sum, {.accumulate = true}); });
    EXPECT_TRUE(same_bits(sum, Tensor::zeros({40, 56}, DType::kFloat32))) << "captured work ran";
    graph.launch();
    graph.launch();
    std::vector<double> want = testing::to_doubles(once);
    for (double& value : want) value *= 2.0;
    EXPECT_TRUE(near(sum, want, 1e-6, 0.0));
}

void expect_refused(const Stream& stream, const Tensor& a, const Tensor& b, const Tensor& c) {
    try {
        Graph::capture(stream, [&] { gemm(a, b, c); });
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("has not run before it is captured"),
                  std::string::npos)
            << error.what();
    }
}

TEST(GemmCudaTest, RefusesToBeCapturedBeforeItsFirstRun) {
    const Stream stream;
    const StreamScope scope(stream);
    const Tensor a = Tensor::zeros({17, 19}, DType::kFloat32, Device::kCuda);
    const Tensor b = Tensor::zeros({19, 23}, DType::kFloat32, Device::kCuda);
    const Tensor c = Tensor::zeros({17, 23}, DType::kFloat32, Device::kCuda);
    expect_refused(stream, a, b, c);  // this stream has multiplied nothing
    gemm(a, b, c);
    const Tensor fewer = a.slice(0, 0, 11), fewer_c = c.slice(0, 0, 11);
    expect_refused(stream, fewer, b, fewer_c);  // nor has anyone this shape
    gemm(fewer, b, fewer_c);
    // A GPU may take two for one product: parts of long sums, and their sum.
    EXPECT_GE(Graph::capture(stream, [&] { gemm(fewer, b, fewer_c); }).nodes(), 1u);
    const Stream other;
    expect_refused(other, a, b, c);
}

}  // namespace
}  // namespace evenkeel
