#include "parallel/process_grid.h"

#include <gtest/gtest.h>

namespace evenkeel {
namespace {

// What a grid over so many ranks says. Nothing communicates: the check comes first.
class FakeWorld final : public Communicator {
  public:
    explicit FakeWorld(int size) : size_(size) {}
    int rank() const override { return 0; }
    int size() const override { return size_; }
    Pending start_all_reduce(const Tensor&, ReduceOp) override { return {}; }
    void reduce_scatter(const Tensor&, const Tensor&) override {}
    void all_gather(const Tensor&, const Tensor&) override {}
    void broadcast(const Tensor&, int) override {}
    void send(const Tensor&, int) override {}
    void receive(const Tensor&, int) override {}
    void barrier() override {}
    void set_timeout(double) override {}
    std::unique_ptr<Communicator> split(int) override { return make_single_communicator(); }

  protected:
    void all_reduce_doubles(double*, std::int64_t, ReduceOp) override {}

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

}  // namespace
}  // namespace evenkeel
