#include "parallel/process_grid.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

// What a grid over so many ranks says. Nothing communicates: the check comes first.
class FakeWorld final : public Communicator {
  public:
    explicit FakeWorld(int size) : size_(size) {}
    int rank() const override { return 0; }
    int size() const override { return size_; }
    void set_timeout(double) override {}

  protected:
    int do_start_all_reduce(const Tensor&, ReduceOp) override { return 0; }
    int do_start_reduce_scatter(const Tensor&, const Tensor&, ReduceOp) override { return 0; }
    int do_start_all_gather(const Tensor&, const Tensor&) override { return 0; }
    void do_broadcast(const Tensor&, int) override {}
    void do_send(const Tensor&, int) override {}
    void do_receive(const Tensor&, int) override {}
    void do_barrier() override {}
    void do_all_reduce_double(double&, ReduceOp) override {}
    std::unique_ptr<Communicator> do_split(int, const std::string&) override {
        return make_single_communicator();
    }

  private:
    int size_;
};

std::string error_for(int ranks, std::int64_t tensor_parallel, std::int64_t data_parallel) {
    FakeWorld world(ranks);
    ParallelConfig config;
    config.tensor_parallel = tensor_parallel;
    config.data_parallel = data_parallel;
    try {
        ProcessGrid grid(world, config);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        return error.what();
    }
    return "";
}

TEST(ProcessGridTest, AcceptsGridsThatUseAllRanks) {
    EXPECT_EQ(error_for(8, 2, 4), "");
    EXPECT_EQ(error_for(8, 2, 0), "");
    EXPECT_EQ(error_for(1, 1, 1), "");
}

TEST(ProcessGridTest, SaysHowManyRanksToStart) {
    EXPECT_EQ(
        error_for(2, 4, 1),
        "[ProcessGrid] tensor_parallel x data_parallel = 4 x 1 = 4, but 2 ranks were started: "
        "use mpirun -np 4 or set parallel.tensor_parallel=2");
    EXPECT_EQ(error_for(1, 2, 0),
              "[ProcessGrid] tensor_parallel = 2, but 1 rank was started: use mpirun -np 2 or set "
              "parallel.tensor_parallel=1");
    EXPECT_EQ(
        error_for(6, 2, 2),
        "[ProcessGrid] tensor_parallel x data_parallel = 2 x 2 = 4, but 6 ranks were started: "
        "use mpirun -np 4 or set parallel.data_parallel=3");
    EXPECT_EQ(
        error_for(7, 2, 3),
        "[ProcessGrid] tensor_parallel x data_parallel = 2 x 3 = 6, but 7 ranks were started: "
        "use mpirun -np 6");
}

TEST(ProcessGridTest, KnowsTwoStagesOfZero) {
    FakeWorld world(1);
    for (const std::int64_t stage : {0, 1}) {
        const ProcessGrid grid(world, {.zero_stage = stage});
        EXPECT_EQ(grid.state_ranks().cut, stage == 1);
        EXPECT_EQ(grid.state_ranks().size, 1);
    }
    for (const std::int64_t stage : {-1, 2, 3}) {
        EXPECT_THROW(ProcessGrid(world, {.zero_stage = stage}), Error) << stage;
    }
}

TEST(ProcessGridTest, RejectsSizesWhoseProductOverflows) {
    // The product is 1 modulo 2^64.
    EXPECT_NE(error_for(1, 7, 7905747460161236407).find("got 7905747460161236407"),
              std::string::npos);
}

TEST(ProcessGridTest, RejectsSizesBelowOne) {
    EXPECT_NE(error_for(1, 0, 1).find("parallel.tensor_parallel: got 0"), std::string::npos);
    EXPECT_NE(error_for(1, 1, -1).find("parallel.data_parallel: got -1"), std::string::npos);
}

TEST(ProcessGridTest, KvReplicasAreAloneWhenThereAreEnoughHeads) {
    FakeWorld world(1);
    const ProcessGrid grid(world, {});
    EXPECT_EQ(grid.kv_replicas(4).size(), 1);
    EXPECT_THROW(grid.kv_replicas(0), Error);
}

class ProcessGridDeviceTest : public ::testing::TestWithParam<Device> {};

TEST_P(ProcessGridDeviceTest, OneRankNeedsNoCommunicationBetweenDevices) {
    const auto world = make_single_communicator();
    for (Communication communication : {Communication::kNccl, Communication::kStaged}) {
        const ProcessGrid grid(*world, {.communication = communication}, GetParam());
        EXPECT_EQ(grid.device(), GetParam());
        EXPECT_EQ(grid.world().device(), Device::kCpu);
        EXPECT_EQ(grid.host_tensor().device(), Device::kCpu);
        for (Communicator* group : {&grid.tensor(), &grid.data(), &grid.kv_replicas(2)}) {
            EXPECT_EQ(group->device(), GetParam());
            const Tensor x = Tensor::full({5}, 3.0f, DType::kBFloat16, GetParam());
            const Tensor y = Tensor::zeros({1, 5}, DType::kBFloat16, GetParam());
            group->all_reduce(x, ReduceOp::kSum);
            group->all_gather(x, y);
            EXPECT_TRUE(testing::same_bits(y, Tensor::full({1, 5}, 3.0f, DType::kBFloat16)));
        }
        EXPECT_EQ(grid.gpu().uuid.empty(), GetParam() == Device::kCpu);
    }
}

INSTANTIATE_TEST_SUITE_P(,
                         ProcessGridDeviceTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

}  // namespace
}  // namespace evenkeel
