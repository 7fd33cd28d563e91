#include "framework/graph.h"

#include <gtest/gtest.h>

#include <optional>

#include "framework/tensor.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::same_bits;

constexpr int kRows = 37, kColumns = 48;

// out = bf16(in), transposed blocks of columns: several kernels, and memory that comes and goes.
void work(const Tensor& out, const Tensor& in) {
    const Tensor half = in.to(DType::kBFloat16);
    out.slice(1, 0, 16).copy_from(half.slice(1, 32, 48));
    out.slice(1, 16, 48).copy_from(half.slice(1, 0, 32).clone());
}

struct Data {
    Tensor in = gaussian({kRows, kColumns}, DType::kFloat32, 1).to(Device::kCuda);
    Tensor out = Tensor::zeros({kRows, kColumns}, DType::kBFloat16, Device::kCuda);
};

TEST(GraphTest, RepeatsItsWorkWithWhatIsInMemory) {
    const Stream stream;
    const StreamScope scope(stream);
    const Data data, direct;
    const Graph graph = Graph::capture(stream, [&] { work(data.out, data.in); });
    EXPECT_GE(graph.nodes(), 4u);
    EXPECT_TRUE(same_bits(data.out, Tensor::zeros({kRows, kColumns}, DType::kBFloat16)))
        << "recording does nothing";
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        const Tensor values = gaussian({kRows, kColumns}, DType::kFloat32, seed);
        data.in.copy_from(values);
        direct.in.copy_from(values);
        graph.launch();
        work(direct.out, direct.in);
        EXPECT_TRUE(same_bits(data.out, direct.out)) << "launch " << seed;
    }
}

TEST(GraphTest, TakesInStreamsThatJoinThroughEvents) {
    const Stream stream, side;
    const StreamScope scope(stream);
    const Data data, direct;
    Event fork(EventTiming::kOff), join(EventTiming::kOff);
    const Graph graph = Graph::capture(stream, [&] {
        fork.record(stream);
        side.wait(fork);
        {
            const StreamScope on_side(side);
            data.out.slice(1, 0, 16).copy_from(data.in.slice(1, 32, 48));
        }
        data.out.slice(1, 16, 48).copy_from(data.in.slice(1, 0, 32));
        join.record(side);
        stream.wait(join);
    });
    graph.launch();
    graph.launch();
    work(direct.out, direct.in);
    EXPECT_TRUE(same_bits(data.out, direct.out));
    side.synchronize();
}

TEST(GraphTest, LeavesTensorsThatOutliveTheWork) {
    const Stream stream;
    const StreamScope scope(stream);
    const Data data;
    Tensor made;
    Graph graph = Graph::capture(stream, [&] { made = data.in.to(DType::kBFloat16); });
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        const Tensor values = gaussian({kRows, kColumns}, DType::kFloat32, seed);
        data.in.copy_from(values);
        graph.launch();
        EXPECT_TRUE(same_bits(made, values.to(DType::kBFloat16))) << "launch " << seed;
    }
}

TEST(GraphTest, MemoryFromBeforeIsFreedAfterTheRecording) {
    const Stream stream;
    const StreamScope scope(stream);
    const Data data;
    std::optional<Tensor> before = data.in.clone();
    const Graph graph = Graph::capture(stream, [&] {
        before.reset();
        data.out.zero();
    });
    graph.launch();
    stream.synchronize();
}

void expect_error(const char* part, const std::function<void()>& run) {
    try {
        run();
        FAIL() << "no error, want one with \"" << part << '"';
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
}

TEST(GraphTest, SaysWhatCannotBeRecorded) {
    expect_error("stream: got the default stream",
                 [] { Graph::capture(Stream::current(), [] {}); });
    const Stream stream, side;
    const StreamScope scope(stream);
    const Data data;
    Event fork(EventTiming::kOff);
    expect_error("cudaStreamSynchronize",
                 [&] { Graph::capture(stream, [&] { stream.synchronize(); }); });
    expect_error("captured into a graph, want copies between a GPU and the CPU",
                 [&] { Graph::capture(stream, [&] { data.in.to(Device::kCpu); }); });
    const Tensor on_cpu = Tensor::zeros(data.in.shape(), data.in.dtype());
    expect_error("captured into a graph, want copies between a GPU and the CPU",
                 [&] { Graph::capture(stream, [&] { data.in.copy_from(on_cpu); }); });
    expect_error("a stream that joined the work is not waited for", [&] {
        Graph::capture(stream, [&] {
            fork.record(stream);
            side.wait(fork);
            const StreamScope on_side(side);
            data.out.zero();
        });
    });
    expect_error("mine", [&] {
        Graph::capture(stream, [] { throw_error(ErrorCode::kInternal, "test", "mine"); });
    });
    expect_error("graph: got an empty one", [] { Graph().launch(); });
    // The stream is as before.
    data.out.zero();
    const Graph graph = Graph::capture(stream, [&] { data.out.fill(1.0f); });
    graph.launch();
    EXPECT_TRUE(same_bits(data.out, Tensor::full({kRows, kColumns}, 1.0f, DType::kBFloat16)));
}

}  // namespace
}  // namespace evenkeel
