// Collectives beside other work, on the emulated GPU, whose streams do their work late and in any legal
// order: seed by seed another one.
#include <gtest/gtest.h>

#include "framework/graph.h"
#include "framework/stream.h"
#include "parallel/process_grid.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/compare.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

using testing::same_bits;
using testing::world;

constexpr std::uint64_t kSeeds[] = {0, 1, 2, 3, 5, 8, 13, 21};
constexpr std::int64_t kCount = 3000;

Tensor on_gpu(DType type = DType::kFloat32) { return Tensor::zeros({kCount}, type, Device::kCuda); }

class OverlapTest : public ::testing::Test {
  protected:
    void TearDown() override { gpu_emulator::set_seed(1); }
    static ParallelConfig config() {
        ParallelConfig result;
        result.tensor_parallel = world().size() % 2 == 0 ? 2 : 1;
        return result;
    }
    float value(int step) const { return static_cast<float>(1 + step + world().rank()); }
    // The sum of value(step) over a group.
    float sum_over(Communicator& group, int step) const {
        if (group.size() == 1) return value(step);
        float sum = 0;
        for (int r = 0; r < group.size(); ++r) {
            sum += static_cast<float>(1 + step + group.job_rank(r));
        }
        return sum;
    }
    static Tensor full(float wanted) { return Tensor::full({kCount}, wanted, DType::kFloat32); }

    const ProcessGrid grid_{world(), config(), Device::kCuda};
};

TEST_F(OverlapTest, TwoGroupsRunBesideOtherWorkAndAreDoneAfterTheirWaits) {
    for (std::uint64_t seed : kSeeds) {
        gpu_emulator::set_seed(seed + 100 * static_cast<std::uint64_t>(world().rank()) *
                                          (seed == 0 ? 0 : 1));
        const Tensor a = on_gpu(), b = on_gpu(), other = on_gpu(), a_copy = on_gpu(),
                     b_copy = on_gpu();
        for (int step = 0; step < 5; ++step) {
            a.fill(value(step));
            Pending first = grid_.tensor().start_all_reduce(a, ReduceOp::kSum);
            b.fill(value(step + 10));
            Pending second = grid_.data().start_all_reduce(b, ReduceOp::kSum);
            other.fill(static_cast<float>(step));
            first.wait();
            a_copy.copy_from(a);
            second.wait();
            b_copy.copy_from(b);
            EXPECT_TRUE(same_bits(a_copy, full(sum_over(grid_.tensor(), step)))) << seed;
            EXPECT_TRUE(same_bits(b_copy, full(sum_over(grid_.data(), step + 10)))) << seed;
            EXPECT_TRUE(same_bits(other, full(static_cast<float>(step)))) << seed;
        }
    }
    EXPECT_TRUE(gpu_emulator::take_reports().empty());
}

TEST_F(OverlapTest, ScatteringAndGatheringRunBesideOtherWorkAndKeepTheirTensors) {
    const std::size_t before = Buffer::live_bytes(Device::kCuda);
    for (std::uint64_t seed : kSeeds) {
        gpu_emulator::set_seed(seed);
        const std::int64_t ranks = grid_.tp_size();
        const Tensor block = on_gpu(), other = on_gpu();
        Pending sum;
        {
            const Tensor parts = Tensor::zeros({ranks, kCount}, DType::kFloat32, Device::kCuda);
            parts.fill(value(0));
            sum = grid_.tensor().start_reduce_scatter(parts, block);
        }
        other.fill(7.0f);
        sum.wait();
        const Tensor all = Tensor::zeros({ranks, kCount}, DType::kFloat32, Device::kCuda);
        Pending gather;
        {
            const Tensor copy = block.clone();
            gather = grid_.tensor().start_all_gather(copy, all);
        }
        other.fill(3.0f);
        gather.wait();
        EXPECT_TRUE(same_bits(block, full(sum_over(grid_.tensor(), 0)))) << seed;
        EXPECT_TRUE(same_bits(
            all, Tensor::full({ranks, kCount}, sum_over(grid_.tensor(), 0), DType::kFloat32)))
            << seed;
        EXPECT_TRUE(same_bits(other, full(3.0f))) << seed;
    }
    EXPECT_EQ(Buffer::live_bytes(Device::kCuda), before);
    EXPECT_TRUE(gpu_emulator::take_reports().empty());
}

TEST_F(OverlapTest, TheHostDoesNotWait) {
    const Tensor x = on_gpu();
    Stream::current().synchronize();
    gpu_emulator::reset_host_waits();
    for (int step = 0; step < 20; ++step) {
        grid_.tensor().all_reduce(x, ReduceOp::kSum);
        Pending pending = grid_.data().start_all_reduce(x, ReduceOp::kMean);
        pending.wait();
    }
    EXPECT_EQ(gpu_emulator::host_waits(), 0u);
    Stream::current().synchronize();
}

TEST_F(OverlapTest, TheGpuOfARankThatWaitsForMessagesGoesOn) {
    for (std::uint64_t seed : kSeeds) {
        gpu_emulator::set_seed(seed);
        const Tensor x = on_gpu();
        x.fill(value(0));
        Pending pending = grid_.tensor().start_all_reduce(x, ReduceOp::kSum);
        pending.wait();
        // The others can't go on before this rank's GPU has done its part.
        if (world().rank() > 0) Stream::current().synchronize();
        world().barrier();
        EXPECT_TRUE(same_bits(x, full(sum_over(grid_.tensor(), 0)))) << seed;
    }
}

TEST_F(OverlapTest, MemoryOfATensorThatIsGoneIsKeptUntilTheWait) {
    const std::size_t before = Buffer::live_bytes(Device::kCuda);
    for (std::uint64_t seed : kSeeds) {
        gpu_emulator::set_seed(seed);
        const Tensor sum = on_gpu(), next = on_gpu();
        Pending pending;
        {
            const Tensor x = on_gpu();
            x.fill(value(0));
            pending = grid_.tensor().start_all_reduce(x, ReduceOp::kSum);
        }
        next.fill(7.0f);
        pending.wait();
        const Tensor reused = on_gpu();
        reused.fill(3.0f);
        EXPECT_TRUE(same_bits(reused, full(3.0f))) << seed;
    }
    EXPECT_EQ(Buffer::live_bytes(Device::kCuda), before);
    EXPECT_TRUE(gpu_emulator::take_reports().empty());
}

TEST_F(OverlapTest, CollectivesRepeatInAGraph) {
    for (std::uint64_t seed : kSeeds) {
        gpu_emulator::set_seed(seed);
        const Tensor x = on_gpu(), sum = on_gpu();
        const Stream stream;
        const auto work = [&] {
            sum.copy_from(x);
            Pending pending = grid_.tensor().start_all_reduce(sum, ReduceOp::kSum);
            pending.wait();
            grid_.data().all_reduce(sum, ReduceOp::kMax);
        };
        Stream::current().synchronize();
        const Graph graph = Graph::capture(stream, work);
        const StreamScope scope(stream);
        for (int step = 0; step < 4; ++step) {
            x.fill(value(step));
            graph.launch();
            // Outside of the graph, too, and in between.
            const Tensor again = on_gpu();
            again.fill(value(step));
            grid_.tensor().all_reduce(again, ReduceOp::kSum);
            const float tensor_sum = sum_over(grid_.tensor(), step);
            EXPECT_TRUE(same_bits(again, full(tensor_sum))) << seed;
            const float last =
                tensor_sum + static_cast<float>(grid_.tp_size() * grid_.tp_size() *
                                                (grid_.dp_size() - 1 - grid_.dp_rank()));
            EXPECT_TRUE(same_bits(sum, full(last))) << seed << ", step " << step;
        }
    }
    EXPECT_TRUE(gpu_emulator::take_reports().empty());
}

TEST_F(OverlapTest, AMissingWaitIsFound) {
    if (grid_.tp_size() == 1) GTEST_SKIP() << "nobody to wait for";
    const Tensor x = on_gpu(), copy = on_gpu();
    int wrong = 0;
    for (std::uint64_t seed : kSeeds) {
        gpu_emulator::set_seed(seed);
        x.fill(value(0));
        Pending pending = grid_.tensor().start_all_reduce(x, ReduceOp::kSum);
        copy.copy_from(x);  // too early
        pending.wait();
        if (!same_bits(copy, full(sum_over(grid_.tensor(), 0)))) ++wrong;
    }
    EXPECT_TRUE(wrong > 0 || !gpu_emulator::take_reports().empty()) << "no seed saw the difference";
    gpu_emulator::take_reports();
}

TEST_F(OverlapTest, AResultThatAnotherStreamReadsWithoutAnEventIsFound) {
    if (grid_.tp_size() == 1) GTEST_SKIP() << "nobody to wait for";
    const Tensor x = on_gpu(), copy = on_gpu();
    const Stream other;
    Stream::current().synchronize();
    int wrong = 0;
    for (std::uint64_t seed : kSeeds) {
        gpu_emulator::set_seed(seed);
        x.fill(value(0));
        grid_.tensor().all_reduce(x, ReduceOp::kSum);
        {
            const StreamScope scope(other);
            copy.copy_from(x);
            other.synchronize();
        }
        if (!same_bits(copy, full(sum_over(grid_.tensor(), 0)))) ++wrong;
        Stream::current().synchronize();
    }
    EXPECT_TRUE(wrong > 0 || !gpu_emulator::take_reports().empty()) << "no seed saw the difference";
    gpu_emulator::take_reports();
}

}  // namespace
}  // namespace evenkeel
