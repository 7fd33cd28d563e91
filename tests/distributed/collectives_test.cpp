// Every collective in every type, through every kind of group. The numbers are small integers, so that sums are exact and equality is
// equality of bits; the counts are odd, uneven over ranks, empty, and on both sides of the step from
// direct exchange to reduce-scatter and all-gather.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "framework/stream.h"
#include "parallel/gpu_assignment.h"
#include "parallel/mpi_communicator.h"
#include "parallel/nccl_communicator.h"
#include "parallel/staged_communicator.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

using testing::same_bits;
using testing::world;

// kPieces: the host's, in messages of at most 4 KiB, as for what exceeds MPI's limit of 2^31 bytes.
enum class Kind { kHost, kPieces, kStaged, kNccl };
constexpr const char* kKindNames[] = {"host", "pieces", "staged", "nccl"};
void PrintTo(Kind kind, std::ostream* out) { *out << kKindNames[static_cast<int>(kind)]; }

// Those whose sums are in rank order and rounded once.
std::vector<Kind> ordered_kinds() {
    std::vector<Kind> kinds{Kind::kHost, Kind::kPieces};
    if (!testing::test_gpus().empty()) kinds.push_back(Kind::kStaged);
    return kinds;
}
std::vector<Kind> all_kinds() {
    std::vector<Kind> kinds = ordered_kinds();
    if (!testing::test_gpus().empty() && nccl_version() != 0) kinds.push_back(Kind::kNccl);
    return kinds;
}

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

class CollectivesTest : public ::testing::TestWithParam<Kind> {
  protected:
    void SetUp() override {
        if (GetParam() == Kind::kPieces) whole_ = set_max_message_bytes(4096);
    }
    void TearDown() override {
        if (GetParam() == Kind::kPieces) set_max_message_bytes(whole_);
    }
    static std::unique_ptr<Communicator> make_group() {
        std::unique_ptr<Communicator> host = world().split(0);
        switch (GetParam()) {
            case Kind::kHost:
            case Kind::kPieces:
                break;
            case Kind::kStaged:
                assign_gpu(world(), Communication::kStaged);
                return make_staged_communicator(std::move(host));
            case Kind::kNccl:
                assign_gpu(world(), Communication::kNccl);
                return make_nccl_communicator(std::move(host), 60.0);
        }
        return host;
    }
    // A copy on the group's device.
    Tensor on_device(const Tensor& tensor) const {
        const Tensor copy = zeros(tensor.shape(), tensor.dtype());
        copy.copy_from(tensor);
        return copy;
    }
    Tensor zeros(const Shape& shape, DType type) const {
        return Tensor::zeros(shape, type, group_->device());
    }
    // What a rank has: see element().
    Tensor data_of(int rank, const Shape& shape, DType type) const {
        return on_device(filled(shape, type, [rank](std::int64_t i) { return element(i, rank); }));
    }

    std::int64_t whole_ = 0;
    const std::unique_ptr<Communicator> group_ = make_group();
    const int rank_ = group_->rank();
    const int size_ = group_->size();
};

class OrderedCollectivesTest : public CollectivesTest {};

TEST_P(CollectivesTest, AllReduce) {
    for (DType type : kTypes) {
        for (std::int64_t count : kCounts) {
            const Tensor sum = data_of(rank_, {count}, type), max = data_of(rank_, {count}, type);
            group_->all_reduce(sum, ReduceOp::kSum);
            group_->all_reduce(max, ReduceOp::kMax);
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
            const Tensor input = data_of(rank_, {size_, count}, type);
            const Tensor output = zeros({count}, type);
            group_->reduce_scatter(input, output);
            EXPECT_TRUE(same_bits(
                output, filled({count}, type,
                               [&](std::int64_t i) { return sum_over_ranks(rank_ * count + i); })))
                << name_of(type) << " " << count;
            EXPECT_TRUE(same_bits(input, data_of(rank_, {size_, count}, type)))
                << "the input changed";
            // Into its own place in the input.
            const Tensor mine = input.slice(0, rank_, rank_ + 1).view({count});
            group_->reduce_scatter(input, mine, ReduceOp::kMax);
            EXPECT_TRUE(same_bits(
                mine, filled({count}, type,
                             [&](std::int64_t i) { return max_over_ranks(rank_ * count + i); })))
                << name_of(type) << " " << count;
        }
    }
}

// What gradients are averaged with, whole or in parts.
TEST_P(CollectivesTest, MeansOfPartsHaveTheBitsOfTheMeanOfAll) {
    for (const std::int64_t count : kCounts) {
        const Tensor all = data_of(rank_, {size_, count}, DType::kFloat32);
        const Tensor part = zeros({count}, DType::kFloat32);
        group_->reduce_scatter(all, part, ReduceOp::kMean);
        group_->all_reduce(all, ReduceOp::kMean);
        EXPECT_TRUE(same_bits(part, all.slice(0, rank_, rank_ + 1).view({count}))) << count;
    }
}

TEST_P(CollectivesTest, ReduceScatterOfALongTensorGoesSliceBySlice) {
    constexpr std::int64_t kCount = 600001;
    const Tensor input = data_of(rank_, {size_, kCount}, DType::kFloat32);
    const Tensor output = zeros({kCount}, DType::kFloat32);
    group_->reduce_scatter(input, output);
    EXPECT_TRUE(same_bits(output, filled({kCount}, DType::kFloat32, [&](std::int64_t i) {
                              return sum_over_ranks(rank_ * kCount + i);
                          })));
}

TEST_P(CollectivesTest, WhatIsStartedIsThereAfterTheWait) {
    constexpr std::int64_t kCount = 1025;
    const Tensor input = data_of(rank_, {size_, kCount}, DType::kBFloat16);
    const Tensor block = zeros({kCount}, DType::kBFloat16);
    const Tensor all = zeros({size_, kCount}, DType::kBFloat16);
    Pending sum = group_->start_reduce_scatter(input, block);
    sum.wait();
    Pending gather = group_->start_all_gather(block, all);
    gather.wait();
    EXPECT_TRUE(same_bits(all, filled({size_, kCount}, DType::kBFloat16, sum_over_ranks)));
}

TEST_P(CollectivesTest, AllGather) {
    for (DType type : kTypes) {
        for (std::int64_t count : kCounts) {
            const Tensor input = data_of(rank_, {count}, type);
            const Tensor want = filled({size_, count}, type, [&](std::int64_t i) {
                return element(i % count, static_cast<int>(i / count));
            });
            const Tensor output = zeros({size_, count}, type);
            group_->all_gather(input, output);
            EXPECT_TRUE(same_bits(output, want)) << name_of(type) << " " << count;
            // From its own place in the output.
            const Tensor in_place = zeros({size_, count}, type);
            in_place.slice(0, rank_, rank_ + 1).view({count}).copy_from(input);
            group_->all_gather(in_place.slice(0, rank_, rank_ + 1), in_place);
            EXPECT_TRUE(same_bits(in_place, want)) << name_of(type) << " " << count;
        }
    }
}

TEST_P(CollectivesTest, BroadcastFromEveryRank) {
    for (int root = 0; root < size_; ++root) {
        for (std::int64_t count : kCounts) {
            const Tensor x = data_of(rank_, {count}, DType::kInt32);
            group_->broadcast(x, root);
            EXPECT_TRUE(same_bits(x, data_of(root, {count}, DType::kInt32))) << count;
        }
    }
}

TEST_P(CollectivesTest, SendAndReceiveAroundARing) {
    if (size_ == 1) GTEST_SKIP() << "one rank has nobody to send to";
    const int next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
    for (std::int64_t count : kCounts) {
        const Tensor mine = data_of(rank_, {count}, DType::kFloat32);
        const Tensor theirs = zeros({count}, DType::kFloat32);
        if (rank_ == 0) {
            group_->send(mine, next);
            group_->receive(theirs, previous);
        } else {
            group_->receive(theirs, previous);
            group_->send(mine, next);
        }
        EXPECT_TRUE(same_bits(theirs, data_of(previous, {count}, DType::kFloat32))) << count;
    }
}

TEST_P(CollectivesTest, MeansAreSumsTimesOneOverTheNumberOfRanks) {
    for (std::int64_t count : {333, 70001}) {
        const Tensor x = on_device(
            testing::gaussian({count}, DType::kFloat32, 200 + static_cast<std::uint64_t>(rank_)));
        const Tensor sum = on_device(x);
        group_->all_reduce(sum, ReduceOp::kSum);
        const Tensor want = sum.to(Device::kCpu);
        const float factor = 1.0f / static_cast<float>(size_);
        for (std::int64_t i = 0; i < count; ++i) want.data<float>()[i] *= factor;
        group_->all_reduce(x, ReduceOp::kMean);
        EXPECT_TRUE(testing::near(x, want, 1e-6, 1e-6)) << count;
    }
}

TEST_P(CollectivesTest, StartedCollectivesAreWaitedForInAnyOrder) {
    const Tensor a = on_device(Tensor::full({1000}, 1.0f, DType::kFloat32));
    const Tensor b = on_device(Tensor::full({3}, 2.0f, DType::kFloat64));
    Pending first = group_->start_all_reduce(a, ReduceOp::kSum);
    Pending second = group_->start_all_reduce(b, ReduceOp::kSum);
    second.wait();
    first.wait();
    const float size = static_cast<float>(size_);
    EXPECT_TRUE(same_bits(a, Tensor::full({1000}, size, DType::kFloat32)));
    EXPECT_TRUE(same_bits(b, Tensor::full({3}, 2.0f * size, DType::kFloat64)));
}

TEST_P(CollectivesTest, WaitsAreExposedOnceTimingIsOn) {
    if (size_ == 1) GTEST_SKIP() << "one rank waits for nobody";
    const Tensor x = zeros({100}, DType::kFloat32);
    const auto exposed = [&] {
        group_->all_reduce(x, ReduceOp::kSum);
        if (group_->device() == Device::kCuda) Stream::current().synchronize();
        return group_->take_times()[0].exposed;
    };
    EXPECT_EQ(exposed(), 0.0);
    group_->set_timing(true);
    EXPECT_GT(exposed(), 0.0);
    EXPECT_EQ(group_->take_times()[0].exposed, 0.0) << "taken before";
    const Tensor all = zeros({size_, 50}, DType::kFloat32), part = zeros({50}, DType::kFloat32);
    group_->all_gather(part, all);
    Pending started = group_->start_reduce_scatter(all, part);
    if (group_->device() == Device::kCuda) Stream::current().synchronize();
    CommunicationTimes times = group_->take_times();
    const auto at = [&](Collective collective) {
        return times[static_cast<std::size_t>(collective)];
    };
    EXPECT_EQ(at(Collective::kAllReduce).exposed, 0.0);
    EXPECT_GT(at(Collective::kAllGather).exposed, 0.0);
    EXPECT_GE(at(Collective::kAllGather).hidden, 0.0);
    started.wait();
    if (group_->device() == Device::kCuda) Stream::current().synchronize();
    const CommunicationTimes later = group_->take_times();
    for (std::size_t i = 0; i < times.size(); ++i) {
        times[i].exposed += later[i].exposed;
        times[i].hidden += later[i].hidden;
    }
    EXPECT_GT(at(Collective::kReduceScatter).exposed + at(Collective::kReduceScatter).hidden, 0.0);
    group_->set_timing(false);
    EXPECT_EQ(exposed(), 0.0);
}

TEST_P(CollectivesTest, ScalarsKeepDoublePrecision) {
    const double mine = 1.0 + std::ldexp(1.0, -50) * rank_;
    double sum = 0;
    for (int r = 0; r < size_; ++r) sum += 1.0 + std::ldexp(1.0, -50) * r;
    EXPECT_EQ(group_->all_reduce_scalar(mine, ReduceOp::kSum), sum);
    EXPECT_EQ(group_->all_reduce_scalar(mine, ReduceOp::kMax),
              1.0 + std::ldexp(1.0, -50) * (size_ - 1));
}

TEST_P(CollectivesTest, SplitGroupsTalkAmongThemselves) {
    const auto part = group_->split(rank_ % 2);
    EXPECT_EQ(part->device(), group_->device());
    EXPECT_EQ(part->rank(), rank_ / 2);
    EXPECT_EQ(part->size(), (size_ + 1 - rank_ % 2) / 2);
    const auto sum = [&](Communicator& group, int value) {
        const Tensor x = on_device(Tensor::full({7}, static_cast<float>(value), DType::kInt32));
        group.all_reduce(x, ReduceOp::kSum);
        return x.to(Device::kCpu).data<std::int32_t>()[6];
    };
    int want = 0;
    for (int r = rank_ % 2; r < size_; r += 2) want += r;
    EXPECT_EQ(sum(*part, rank_), want);
    // Interleaved with the parent's operations.
    EXPECT_EQ(sum(*group_, 1), size_);
    EXPECT_EQ(sum(*part, 1), part->size());
    EXPECT_EQ(part->split(part->rank())->size(), 1);
}

TEST_P(CollectivesTest, BarrierLetsNobodyPastBeforeAllHaveArrived) {
    const Tensor flag = zeros({1}, DType::kInt32);
    for (int round = 0; round < 20; ++round) {
        group_->barrier();
        flag.fill(static_cast<float>(round));
        group_->all_reduce(flag, ReduceOp::kMax);
        EXPECT_EQ(flag.to(Device::kCpu).data<std::int32_t>()[0], round);
    }
}

TEST_P(CollectivesTest, SteadyStateDoesNotAllocateBuffers) {
    const Tensor x = zeros({100000}, DType::kBFloat16);
    group_->all_reduce(x, ReduceOp::kSum);
    for (Device device : {Device::kCpu, group_->device()}) {
        Buffer::reset_peak(device);
        const std::size_t live = Buffer::live_bytes(device);
        for (int i = 0; i < 3; ++i) group_->all_reduce(x, ReduceOp::kSum);
        EXPECT_EQ(Buffer::peak_bytes(device), live) << name_of(device);
    }
}

TEST_P(CollectivesTest, CountsItsOperations) {
    group_->counts() = {};
    const Tensor x = zeros({size_, 6}, DType::kBFloat16);
    const Tensor block = zeros({6}, DType::kBFloat16);
    group_->all_reduce(x, ReduceOp::kSum);
    group_->reduce_scatter(x, block);
    group_->all_gather(block, x);
    group_->broadcast(block, 0);
    EXPECT_EQ(group_->counts().all_reduces, 1);
    EXPECT_EQ(group_->counts().reduce_scatters, 1);
    EXPECT_EQ(group_->counts().all_gathers, 1);
    EXPECT_EQ(group_->counts().broadcasts, 1);
    EXPECT_EQ(group_->counts().bytes, 3 * 12 * size_ + 12);
}

TEST_P(CollectivesTest, BadArgumentsAreErrorsBeforeAnyMessage) {
    const Tensor one = zeros({1}, DType::kFloat32), two = zeros({2}, DType::kFloat32);
    const Tensor strided = zeros({4, 6}, DType::kFloat32).slice(1, 0, 3);
    EXPECT_THROW(group_->all_reduce(strided, ReduceOp::kSum), Error);
    EXPECT_THROW(group_->all_reduce(zeros({4}, DType::kFloat16), ReduceOp::kSum), Error);
    EXPECT_THROW(group_->all_reduce(zeros({4}, DType::kBFloat16), ReduceOp::kMean), Error);
    EXPECT_THROW(group_->broadcast(one, size_), Error);
    EXPECT_THROW(group_->all_gather(two, one), Error);
    EXPECT_THROW(group_->send(one, rank_), Error);
    EXPECT_THROW(group_->receive(one, size_), Error);
    if (group_->device() == Device::kCuda) {
        EXPECT_THROW(group_->all_reduce(Tensor::zeros({1}, DType::kFloat32), ReduceOp::kSum),
                     Error);
    }
    EXPECT_EQ(group_->all_reduce_scalar(1, ReduceOp::kSum), size_) << "the group is still usable";
}

TEST_P(OrderedCollectivesTest, RoundsBf16SumsOnce) {
    // Rank 0 holds 256, the others 1. Rounding after each addition would stay at 256.
    for (std::int64_t count : {5, 100003}) {
        const Tensor x =
            on_device(Tensor::full({count}, rank_ == 0 ? 256.0f : 1.0f, DType::kBFloat16));
        group_->all_reduce(x, ReduceOp::kSum);
        const float exact = 255.0f + static_cast<float>(size_);
        EXPECT_TRUE(same_bits(x, Tensor::full({count}, exact, DType::kBFloat16))) << exact;
    }
}

TEST_P(OrderedCollectivesTest, EveryRankGetsTheBitsOfTheSumInRankOrder) {
    for (DType type : {DType::kFloat32, DType::kBFloat16}) {
        for (std::int64_t count : {333, 70001}) {
            const auto data = [&](int rank) {
                return testing::gaussian({count}, type, 100 + static_cast<std::uint64_t>(rank));
            };
            const Tensor sum = data(0).to(DType::kFloat32).clone();
            for (int r = 1; r < size_; ++r) {
                const Tensor wide = data(r).to(DType::kFloat32);
                for (std::int64_t i = 0; i < count; ++i)
                    sum.data<float>()[i] += wide.data<float>()[i];
            }
            const Tensor x = on_device(data(rank_));
            group_->all_reduce(x, ReduceOp::kSum);
            EXPECT_TRUE(same_bits(x, sum.to(type))) << name_of(type) << " " << count;
            if (type != DType::kFloat32) continue;
            const Tensor mean = on_device(data(rank_));
            group_->all_reduce(mean, ReduceOp::kMean);
            const float factor = 1.0f / static_cast<float>(size_);
            for (std::int64_t i = 0; i < count; ++i) sum.data<float>()[i] *= factor;
            EXPECT_TRUE(same_bits(mean, sum)) << "mean of " << count;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         CollectivesTest,
                         ::testing::ValuesIn(all_kinds()),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Kinds,
                         OrderedCollectivesTest,
                         ::testing::ValuesIn(ordered_kinds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace evenkeel
