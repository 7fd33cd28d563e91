// Every collective in every type. The numbers are small integers, so that sums are exact and equality is
// equality of bits; the counts are odd, uneven over ranks, empty, and on both sides of the step from
// direct exchange to reduce-scatter and all-gather.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "parallel/mpi_communicator.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

using testing::same_bits;
using testing::world;

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kFloat64};
constexpr std::int64_t kCounts[] = {0, 1, 3, 31, 1025, 40001};

// Element i of the data of a rank: integers from -4 to 4.
int element(std::int64_t i, int rank) {
    return static_cast<int>((i * 7 + rank * 5 + i * rank) % 9) - 4;
}

template <typename F>
Tensor filled(const Shape& shape, DType type, F&& value) {
    const Tensor tensor = Tensor::uninitialized(shape, type);
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
        switch (type) {
            case DType::kFloat32:
                tensor.data<float>()[i] = static_cast<float>(value(i));
                break;
            case DType::kBFloat16:
                tensor.data<bfloat16>()[i] = bfloat16(static_cast<float>(value(i)));
                break;
            case DType::kFloat16:
                tensor.data<float16>()[i] = float16(static_cast<float>(value(i)));
                break;
            case DType::kInt32:
                tensor.data<std::int32_t>()[i] = value(i);
                break;
            case DType::kFloat64:
                tensor.data<double>()[i] = value(i);
                break;
        }
    }
    return tensor;
}

int sum_over_ranks(std::int64_t i) {
    int sum = 0;
    for (int r = 0; r < world().size(); ++r) sum += element(i, r);
    return sum;
}

int max_over_ranks(std::int64_t i) {
    int max = -100;
    for (int r = 0; r < world().size(); ++r) max = std::max(max, element(i, r));
    return max;
}

// Every test in whole messages and in messages of a few bytes: what counts beyond 2^31 need.
class CollectivesTest : public ::testing::TestWithParam<std::int64_t> {
  protected:
    void SetUp() override { previous_ = set_max_message_bytes(GetParam()); }
    void TearDown() override { set_max_message_bytes(previous_); }
    std::int64_t previous_ = 0;
    const int rank_ = world().rank();
    const int size_ = world().size();
};

TEST_P(CollectivesTest, AllReduce) {
    for (DType type : kTypes) {
        for (std::int64_t count : kCounts) {
            const Tensor sum =
                filled({count}, type, [&](std::int64_t i) { return element(i, rank_); });
            const Tensor max = sum.clone();
            world().all_reduce(sum, ReduceOp::kSum);
            world().all_reduce(max, ReduceOp::kMax);
            EXPECT_TRUE(same_bits(sum, filled({count}, type, sum_over_ranks)))
                << name_of(type) << " " << count;
            EXPECT_TRUE(same_bits(max, filled({count}, type, max_over_ranks)))
                << name_of(type) << " " << count;
        }
    }
}

TEST_P(CollectivesTest, ReduceScatter) {
    for (DType type : kTypes) {
        for (std::int64_t count : kCounts) {
            const Tensor input =
                filled({size_, count}, type, [&](std::int64_t i) { return element(i, rank_); });
            const Tensor before = input.clone();
            const Tensor output = Tensor::zeros({count}, type);
            world().reduce_scatter(input, output);
            EXPECT_TRUE(same_bits(
                output, filled({count}, type,
                               [&](std::int64_t i) { return sum_over_ranks(rank_ * count + i); })))
                << name_of(type) << " " << count;
            EXPECT_TRUE(same_bits(input, before)) << "the input changed";
        }
    }
}

TEST_P(CollectivesTest, AllGather) {
    for (DType type : kTypes) {
        for (std::int64_t count : kCounts) {
            const Tensor input =
                filled({count}, type, [&](std::int64_t i) { return element(i, rank_); });
            const Tensor want = filled({size_, count}, type, [&](std::int64_t i) {
                return element(i % count, static_cast<int>(i / count));
            });
            const Tensor output = Tensor::zeros({size_, count}, type);
            world().all_gather(input, output);
            EXPECT_TRUE(same_bits(output, want)) << name_of(type) << " " << count;
            // From its own place in the output.
            const Tensor in_place = Tensor::zeros({size_, count}, type);
            in_place.slice(0, rank_, rank_ + 1).view({count}).copy_from(input);
            world().all_gather(in_place.slice(0, rank_, rank_ + 1), in_place);
            EXPECT_TRUE(same_bits(in_place, want)) << name_of(type) << " " << count;
        }
    }
}

TEST_P(CollectivesTest, BroadcastFromEveryRank) {
    for (int root = 0; root < size_; ++root) {
        for (std::int64_t count : kCounts) {
            const Tensor x =
                filled({count}, DType::kInt32, [&](std::int64_t i) { return element(i, rank_); });
            world().broadcast(x, root);
            EXPECT_TRUE(same_bits(x, filled({count}, DType::kInt32,
                                            [&](std::int64_t i) { return element(i, root); })));
        }
    }
}

TEST_P(CollectivesTest, SendAndReceiveAroundARing) {
    if (size_ == 1) GTEST_SKIP() << "one rank has nobody to send to";
    const int next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
    for (std::int64_t count : kCounts) {
        const Tensor mine =
            filled({count}, DType::kFloat32, [&](std::int64_t i) { return element(i, rank_); });
        const Tensor theirs = Tensor::zeros({count}, DType::kFloat32);
        if (rank_ == 0) {
            world().send(mine, next);
            world().receive(theirs, previous);
        } else {
            world().receive(theirs, previous);
            world().send(mine, next);
        }
        EXPECT_TRUE(same_bits(theirs, filled({count}, DType::kFloat32, [&](std::int64_t i) {
                                  return element(i, previous);
                              })));
    }
}

INSTANTIATE_TEST_SUITE_P(Messages,
                         CollectivesTest,
                         ::testing::Values(std::int64_t{1} << 30, std::int64_t{4096}),
                         [](const auto& test) { return concat("UpTo", test.param, "Bytes"); });

TEST(CommunicatorTest, RoundsBf16SumsOnce) {
    // Rank 0 holds 256, the others 1. Rounding after each addition would stay at 256.
    for (std::int64_t count : {5, 100003}) {
        const Tensor x =
            Tensor::full({count}, world().rank() == 0 ? 256.0f : 1.0f, DType::kBFloat16);
        world().all_reduce(x, ReduceOp::kSum);
        const float exact = 255.0f + static_cast<float>(world().size());
        EXPECT_TRUE(same_bits(x, Tensor::full({count}, exact, DType::kBFloat16))) << exact;
    }
}

TEST(CommunicatorTest, EveryRankGetsTheBitsOfTheSumInRankOrder) {
    for (DType type : {DType::kFloat32, DType::kBFloat16}) {
        for (std::int64_t count : {333, 70001}) {
            const auto data = [&](int rank) {
                return testing::gaussian({count}, type, 100 + static_cast<std::uint64_t>(rank));
            };
            const Tensor want = data(0).to(DType::kFloat32).clone();
            for (int r = 1; r < world().size(); ++r) {
                const Tensor wide = data(r).to(DType::kFloat32);
                for (std::int64_t i = 0; i < count; ++i)
                    want.data<float>()[i] += wide.data<float>()[i];
            }
            const Tensor x = data(world().rank()).clone();
            world().all_reduce(x, ReduceOp::kSum);
            EXPECT_TRUE(same_bits(x, want.to(type))) << name_of(type) << " " << count;
        }
    }
}

TEST(CommunicatorTest, MeansAreSumsTimesOneOverTheNumberOfRanks) {
    for (std::int64_t count : {333, 70001}) {
        const Tensor x = testing::gaussian({count}, DType::kFloat32,
                                           200 + static_cast<std::uint64_t>(world().rank()));
        const Tensor want = x.clone();
        world().all_reduce(want, ReduceOp::kSum);
        const float factor = 1.0f / static_cast<float>(world().size());
        for (std::int64_t i = 0; i < count; ++i) want.data<float>()[i] *= factor;
        world().all_reduce(x, ReduceOp::kMean);
        EXPECT_TRUE(same_bits(x, want)) << count;
    }
}

TEST(CommunicatorTest, StartedCollectivesAreWaitedForInAnyOrder) {
    const int size = world().size();
    const Tensor a = Tensor::full({1000}, 1.0f, DType::kFloat32);
    const Tensor b = Tensor::full({3}, 2.0f, DType::kFloat64);
    Pending first = world().start_all_reduce(a, ReduceOp::kSum);
    Pending second = world().start_all_reduce(b, ReduceOp::kSum);
    second.wait();
    first.wait();
    const auto sum = [size](int value) { return static_cast<float>(value * size); };
    EXPECT_TRUE(same_bits(a, Tensor::full({1000}, sum(1), DType::kFloat32)));
    EXPECT_TRUE(same_bits(b, Tensor::full({3}, sum(2), DType::kFloat64)));
}

TEST(CommunicatorTest, TimeInsideOperationsIsExposedOnceTimingIsOn) {
    if (world().size() == 1) GTEST_SKIP() << "one rank waits for nobody";
    const Tensor x = Tensor::zeros({100}, DType::kFloat32);
    world().take_exposed_seconds();
    world().all_reduce(x, ReduceOp::kSum);
    EXPECT_EQ(world().take_exposed_seconds(), 0.0);
    world().set_timing(true);
    world().all_reduce(x, ReduceOp::kSum);
    EXPECT_GT(world().take_exposed_seconds(), 0.0);
    EXPECT_EQ(world().take_exposed_seconds(), 0.0) << "taken before";
    world().set_timing(false);
}

TEST(CommunicatorTest, ScalarsKeepDoublePrecision) {
    const double mine = 1.0 + std::ldexp(1.0, -50) * world().rank();
    double sum = 0;
    for (int r = 0; r < world().size(); ++r) sum += 1.0 + std::ldexp(1.0, -50) * r;
    EXPECT_EQ(world().all_reduce_scalar(mine, ReduceOp::kSum), sum);
    EXPECT_EQ(world().all_reduce_scalar(mine, ReduceOp::kMax),
              1.0 + std::ldexp(1.0, -50) * (world().size() - 1));
}

TEST(CommunicatorTest, SplitGroupsTalkAmongThemselves) {
    const int rank = world().rank(), size = world().size();
    const auto group = world().split(rank % 2);
    EXPECT_EQ(group->rank(), rank / 2);
    EXPECT_EQ(group->size(), (size + 1 - rank % 2) / 2);
    const double sum = group->all_reduce_scalar(rank, ReduceOp::kSum);
    double want = 0;
    for (int r = rank % 2; r < size; r += 2) want += r;
    EXPECT_EQ(sum, want);
    // Interleaved with the parent's operations.
    EXPECT_EQ(world().all_reduce_scalar(1, ReduceOp::kSum), size);
    EXPECT_EQ(group->all_reduce_scalar(1, ReduceOp::kSum), group->size());
    EXPECT_EQ(group->split(group->rank())->size(), 1);
}

TEST(CommunicatorTest, BarrierLetsNobodyPastBeforeAllHaveArrived) {
    const Tensor flag = Tensor::zeros({1}, DType::kInt32);
    for (int round = 0; round < 20; ++round) {
        world().barrier();
        flag.fill(static_cast<float>(round));
        world().all_reduce(flag, ReduceOp::kMax);
        EXPECT_EQ(flag.data<std::int32_t>()[0], round);
    }
}

TEST(CommunicatorTest, SteadyStateDoesNotAllocateBuffers) {
    const Tensor x = Tensor::zeros({100000}, DType::kBFloat16);
    world().all_reduce(x, ReduceOp::kSum);
    Buffer::reset_peak(Device::kCpu);
    const std::size_t live = Buffer::live_bytes(Device::kCpu);
    for (int i = 0; i < 3; ++i) world().all_reduce(x, ReduceOp::kSum);
    EXPECT_EQ(Buffer::peak_bytes(Device::kCpu), live);
}

TEST(CommunicatorTest, CountsItsOperations) {
    world().counts() = {};
    const Tensor x = Tensor::zeros({world().size(), 6}, DType::kBFloat16);
    const Tensor block = Tensor::zeros({6}, DType::kBFloat16);
    world().all_reduce(x, ReduceOp::kSum);
    world().reduce_scatter(x, block);
    world().all_gather(block, x);
    world().broadcast(block, 0);
    EXPECT_EQ(world().counts().all_reduces, 1);
    EXPECT_EQ(world().counts().reduce_scatters, 1);
    EXPECT_EQ(world().counts().all_gathers, 1);
    EXPECT_EQ(world().counts().broadcasts, 1);
    EXPECT_EQ(world().counts().bytes, 3 * 12 * world().size() + 12);
}

TEST(CommunicatorTest, BadArgumentsAreErrorsBeforeAnyMessage) {
    const Tensor strided = Tensor::zeros({4, 6}, DType::kFloat32).slice(1, 0, 3);
    EXPECT_THROW(world().all_reduce(strided, ReduceOp::kSum), Error);
    EXPECT_THROW(world().all_reduce(Tensor::zeros({4}, DType::kFloat16), ReduceOp::kSum), Error);
    EXPECT_THROW(world().broadcast(Tensor::zeros({1}, DType::kFloat32), world().size()), Error);
    EXPECT_THROW(world().all_gather(Tensor::zeros({2}, DType::kFloat32),
                                    Tensor::zeros({1}, DType::kFloat32)),
                 Error);
    EXPECT_THROW(world().send(Tensor::zeros({1}, DType::kFloat32), world().rank()), Error);
    EXPECT_EQ(world().all_reduce_scalar(1, ReduceOp::kSum), world().size())
        << "the group is still usable";
}

}  // namespace
}  // namespace evenkeel
