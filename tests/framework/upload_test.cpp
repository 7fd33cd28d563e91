#include "framework/upload.h"

#include <gtest/gtest.h>

#include <vector>

#include "framework/graph.h"
#include "framework/stream.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::same_bits;

TEST(UploadRingTest, SourcesMayChangeAtOnceAndSlotsAreReused) {
    const Stream stream;
    const StreamScope scope(stream);
    UploadRing ring(2);
    std::vector<Tensor> uploaded;
    for (std::uint64_t i = 0; i < 9; ++i) {
        const Tensor source = gaussian({4, static_cast<std::int64_t>(5 + i)}, DType::kFloat32, i);
        uploaded.push_back(ring.upload(source));
        source.fill(-1.0f);
    }
    for (std::uint64_t i = 0; i < 9; ++i) {
        const Tensor want = gaussian({4, static_cast<std::int64_t>(5 + i)}, DType::kFloat32, i);
        EXPECT_TRUE(same_bits(uploaded[i], want)) << "upload " << i;
    }
}

TEST(UploadRingTest, WritesIntoATensorThatAGraphReads) {
    const Stream stream;
    const StreamScope scope(stream);
    UploadRing ring;
    const Tensor in = Tensor::zeros({64}, DType::kFloat32, Device::kCuda);
    const Tensor out = Tensor::zeros({64}, DType::kBFloat16, Device::kCuda);
    const Graph graph = Graph::capture(stream, [&] { out.copy_from(in); });
    for (std::uint64_t i = 0; i < 6; ++i) {
        const Tensor source = gaussian({128}, DType::kFloat32, i).slice(0, 32, 96);
        ring.upload_to(in, source);
        graph.launch();
        EXPECT_TRUE(same_bits(out, source.to(DType::kBFloat16))) << "step " << i;
    }
}

void expect_error(const char* part, const std::function<void()>& run) {
    try {
        run();
        FAIL() << "no error, want one with \"" << part << '"';
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
}

TEST(UploadRingTest, RefusesWhatDoesNotFit) {
    const Stream stream;
    const StreamScope scope(stream);
    UploadRing ring;
    const Tensor source = gaussian({8}, DType::kFloat32, 1);
    const Tensor target = Tensor::zeros({8}, DType::kFloat32, Device::kCuda);
    expect_error("slots: got 0", [] { UploadRing none(0); });
    expect_error("source: got a tensor on cuda", [&] { ring.upload_to(target, target); });
    expect_error("target: got a tensor on cpu", [&] { ring.upload_to(source, source); });
    expect_error("target: got shape", [&] { ring.upload_to(target, source.slice(0, 0, 4)); });
    expect_error("captured into a graph",
                 [&] { Graph::capture(stream, [&] { ring.upload_to(target, source); }); });
    EXPECT_NO_THROW(ring.upload_to(target, source));
    EXPECT_EQ(ring.upload(Tensor::zeros({0}, DType::kFloat32)).numel(), 0);
}

}  // namespace
}  // namespace evenkeel
