#include "parallel/communicator.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"

namespace evenkeel {
namespace {

using testing::same_bits;

class SingleCommunicatorTest : public ::testing::Test {
  protected:
    std::unique_ptr<Communicator> group_ = make_single_communicator();
};

TEST_F(SingleCommunicatorTest, EveryCollectiveIsTheIdentity) {
    for (DType type : {DType::kFloat32, DType::kBFloat16, DType::kInt32, DType::kFloat64}) {
        const Tensor want = Tensor::full({3, 5}, 7.0f, type);
        const Tensor x = want.clone(), y = Tensor::zeros({1, 3, 5}, type);
        group_->all_reduce(x, ReduceOp::kSum);
        group_->all_reduce(x, ReduceOp::kMax);
        group_->broadcast(x, 0);
        EXPECT_TRUE(same_bits(x, want));
        group_->all_gather(x, y);
        EXPECT_TRUE(same_bits(y.view({3, 5}), want));
        x.zero();
        group_->reduce_scatter(y, x);
        EXPECT_TRUE(same_bits(x, want));
    }
    EXPECT_EQ(group_->all_reduce_scalar(1.5, ReduceOp::kSum), 1.5);
    group_->barrier();
    EXPECT_EQ(group_->split(3)->size(), 1);
}

TEST_F(SingleCommunicatorTest, CountsWhatItIsAskedFor) {
    const Tensor x = Tensor::zeros({4}, DType::kBFloat16);
    group_->all_reduce(x, ReduceOp::kSum);
    group_->all_gather(x, Tensor::zeros({1, 4}, DType::kBFloat16));
    group_->broadcast(x, 0);
    group_->all_reduce_scalar(1, ReduceOp::kMax);
    EXPECT_EQ(group_->counts().all_reduces, 2);
    EXPECT_EQ(group_->counts().all_gathers, 1);
    EXPECT_EQ(group_->counts().broadcasts, 1);
    EXPECT_EQ(group_->counts().bytes, 32);
}

TEST_F(SingleCommunicatorTest, RejectsWhatManyRanksWouldReject) {
    const Tensor strided = Tensor::zeros({4, 6}, DType::kFloat32).slice(1, 0, 3);
    EXPECT_THROW(group_->all_reduce(strided, ReduceOp::kSum), Error);
    EXPECT_THROW(group_->all_reduce(Tensor(), ReduceOp::kSum), Error);
    const Tensor fp16 = Tensor::zeros({1, 4}, DType::kFloat16);
    EXPECT_THROW(group_->all_reduce(fp16, ReduceOp::kMax), Error);
    const Tensor bf16 = Tensor::zeros({4}, DType::kBFloat16);
    EXPECT_THROW(group_->all_reduce(bf16, ReduceOp::kMean), Error) << "the factor is not exact";
    EXPECT_THROW(group_->reduce_scatter(fp16, fp16.view({4})), Error);
    EXPECT_NO_THROW(group_->all_gather(fp16.view({4}), fp16)) << "nothing is added";
    EXPECT_THROW(group_->broadcast(Tensor::zeros({1}, DType::kFloat32), 1), Error);
    EXPECT_THROW(group_->send(Tensor::zeros({1}, DType::kFloat32), 0), Error);
    EXPECT_THROW(group_->all_gather(Tensor::zeros({2}, DType::kFloat32),
                                    Tensor::zeros({1, 3}, DType::kFloat32)),
                 Error);
    EXPECT_THROW(group_->all_gather(Tensor::zeros({2}, DType::kFloat32),
                                    Tensor::zeros({1, 2}, DType::kBFloat16)),
                 Error);
}

TEST_F(SingleCommunicatorTest, AHandleThatDiesBeforeItsWaitIsCounted) {
    const Tensor x = Tensor::zeros({4}, DType::kFloat32);
    const std::int64_t before = Pending::dropped();
    {
        Pending first = group_->start_all_reduce(x, ReduceOp::kSum), second;
        second = std::move(first);
        second.wait();
        second.wait();
    }
    EXPECT_EQ(Pending::dropped(), before) << "waited for";
    try {
        const Pending pending = group_->start_all_reduce(x, ReduceOp::kSum);
        throw 1;
    } catch (int) {
    }
    EXPECT_EQ(Pending::dropped(), before) << "an error was on its way";
    {
        Pending pending = group_->start_all_reduce(x, ReduceOp::kSum);
        pending = group_->start_all_reduce(x, ReduceOp::kSum);
        EXPECT_EQ(Pending::dropped(), before + 1) << "the first was replaced";
    }
    EXPECT_EQ(Pending::dropped(), before + 2);
}

TEST_F(SingleCommunicatorTest, AStartedCollectiveKeepsItsMemory) {
    const std::size_t before = Buffer::live_bytes(Device::kCpu);
    Pending pending =
        group_->start_all_reduce(Tensor::zeros({1000}, DType::kFloat32), ReduceOp::kSum);
    EXPECT_GE(Buffer::live_bytes(Device::kCpu), before + 4000);
    pending.wait();
    EXPECT_EQ(Buffer::live_bytes(Device::kCpu), before);
}

}  // namespace
}  // namespace evenkeel
