// Gradients follow what each parameter declares, and nothing else. Every rank's gradient differs from
// every other's, so that a sum too many or too few shows.
#include "parallel/tensor_reduce.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/parameters.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

using testing::same_bits;
using testing::world;

ProcessGrid make_grid(std::int64_t tensor_parallel) {
    ParallelConfig config;
    config.tensor_parallel = tensor_parallel;
    return ProcessGrid(world(), config);
}

Parameter parameter(const std::string& name,
                    const Shape& shape,
                    const Sharding& sharding,
                    GradientSum sum) {
    Parameter p = declare_parameter(name, shape, sharding, DType::kFloat32);
    p.gradient_sum = sum;
    return p;
}

void expect_grad(const Parameter& p, double value) {
    EXPECT_TRUE(
        same_bits(p.grad, Tensor::full(p.grad.shape(), static_cast<float>(value), DType::kFloat32)))
        << p.name << " starts with " << p.grad.data<float>()[0] << ", want " << value;
}

// 1 + 2 + .. + n.
double triangle(int n) { return n * (n + 1) / 2.0; }

TEST(ReduceGradientsTest, SumsExactlyWhatIsDeclared) {
    const int rank = world().rank(), size = world().size();
    const ProcessGrid grid = make_grid(size);
    const auto rows = [&](std::int64_t units) {
        return Sharding::sharded(0, units * size, 1, rank, size);
    };
    const Sharding whole = Sharding::replicated(rank, size);
    const Sharding kv = Sharding::sharded_by_head(0, 2, 1, rank, size);
    // Names that other systems act on must not matter here.
    std::vector<Parameter> list = {
        parameter("layers.0.q_layernorm.weight", {3 * size, 5}, rows(3), GradientSum::kNone),
        parameter("q_gain", {2 * size, 4}, rows(2), GradientSum::kNone),
        parameter("shared_gain", {7}, whole, GradientSum::kTensorParallel),
        parameter("large_shared", {300, 300}, whole, GradientSum::kTensorParallel),
        parameter("norm.weight", {9}, whole, GradientSum::kNone),
        parameter("k_gain", {2, 6}, kv, size > 2 ? GradientSum::kReplicaGroup : GradientSum::kNone),
        parameter("k_weight", {2, 70000}, kv,
                  size > 2 ? GradientSum::kReplicaGroup : GradientSum::kNone),
        parameter("empty", {0, 4}, whole, GradientSum::kTensorParallel),
    };
    const ParameterBuckets buckets(testing::pointers_to(list), Device::kCpu);
    for (Parameter& p : list) p.grad.fill(static_cast<float>(rank + 1));
    reduce_gradients(grid, buckets, 2);
    expect_grad(list[0], rank + 1);
    expect_grad(list[1], rank + 1);
    expect_grad(list[2], triangle(size));
    expect_grad(list[3], triangle(size));
    expect_grad(list[4], rank + 1);
    double replicas_sum = rank + 1;
    if (size > 2) {
        const int replicas = size / 2, first = rank / replicas * replicas;
        replicas_sum = triangle(first + replicas) - triangle(first);
    }
    expect_grad(list[5], replicas_sum);
    expect_grad(list[6], replicas_sum);
}

TEST(ReduceGradientsTest, SmallGradientsTravelTogether) {
    const int rank = world().rank(), size = world().size();
    const ProcessGrid grid = make_grid(size);
    std::vector<Parameter> list;
    for (int i = 0; i < 10; ++i) {
        list.push_back(parameter(concat("gain", i), {16}, Sharding::replicated(rank, size),
                                 GradientSum::kTensorParallel));
    }
    reduce_gradients(grid, {testing::pointers_to(list), Device::kCpu}, 2);
    EXPECT_EQ(grid.tensor().counts().all_reduces, size > 1 ? 1 : 0);
    for (Parameter& p : list) p.gradient_sum = GradientSum::kNone;
    reduce_gradients(grid, {testing::pointers_to(list), Device::kCpu}, 2);
    EXPECT_EQ(grid.tensor().counts().all_reduces, size > 1 ? 1 : 0)
        << "gradients that need no sum make no call";
}

TEST(ReduceGradientsTest, AveragesOverDataParallelRanksAfterSummingOverTensorParallelOnes) {
    const int size = world().size();
    const int tp = size >= 4 ? size / 2 : 1;
    const ProcessGrid grid = make_grid(tp);
    ASSERT_EQ(grid.dp_size(), size / tp);
    const Sharding whole = Sharding::replicated(grid.tp_rank(), tp);
    std::vector<Parameter> list = {parameter("a", {5}, whole, GradientSum::kTensorParallel),
                                   parameter("b", {400, 300}, whole, GradientSum::kNone)};
    const ParameterBuckets buckets(testing::pointers_to(list), Device::kCpu);
    for (Parameter& p : list) p.grad.fill(static_cast<float>(1 + world().rank()));
    reduce_gradients(grid, buckets, 4);
    expect_grad(list[0], triangle(size) / grid.dp_size());
    double over_data = 0;  // of ranks tp_rank, tp_rank + tp, ..
    for (int d = 0; d < grid.dp_size(); ++d) over_data += 1 + d * tp + grid.tp_rank();
    expect_grad(list[1], over_data / grid.dp_size());
}

// A bucket goes on its way when its last parameter is complete, and no sooner.
TEST(GradientReducerTest, StartsEachBucketWhenAllOfItIsComplete) {
    const int size = world().size();
    const ProcessGrid grid = make_grid(1);  // all data parallel
    const Sharding whole = Sharding::replicated(0, 1);
    std::vector<Parameter> list = {parameter("a", {60}, whole, GradientSum::kNone),
                                   parameter("b", {60}, whole, GradientSum::kNone),
                                   parameter("c", {60}, whole, GradientSum::kNone)};
    const ParameterBuckets buckets(testing::pointers_to(list), Device::kCpu, 120);  // a, b; c
    ASSERT_EQ(buckets.list().size(), 2u);
    GradientReducer reducer(grid, buckets, 1);
    const auto sums = [&] { return grid.data().counts().all_reduces; };
    for (int step = 1; step <= 2; ++step) {
        const std::int64_t before = sums(), one = size > 1 ? 1 : 0;
        for (Parameter& p : list) p.grad.fill(static_cast<float>(step + world().rank()));
        reducer.complete({&list[2]});
        EXPECT_EQ(sums(), before + one);
        reducer.complete({&list[1]});
        EXPECT_EQ(sums(), before + one);
        if (step == 1) reducer.complete({&list[0]});  // else finish() takes what is left
        reducer.finish();
        EXPECT_EQ(sums(), before + 2 * one);
        for (const Parameter& p : list) expect_grad(p, step + (size - 1) / 2.0);
    }
    reducer.complete({&list[2]});
    EXPECT_THROW(reducer.complete({&list[2]}), Error);
    reducer.finish();
}

TEST(GradientNormTest, CountsEveryElementOnceAtAnySize) {
    const int rank = world().rank(), size = world().size();
    const ProcessGrid grid = make_grid(size);
    const auto make = [&](const std::string& name, const Shape& shape, const Sharding& sharding) {
        return parameter(name, shape, sharding, GradientSum::kNone);
    };
    // The gradient of the global tensor, cut as each parameter is.
    const auto fill = [](std::vector<Parameter>& list) {
        for (Parameter& p : list) {
            init_normal(p, 1.0, 11);
            p.grad.copy_from(p.master);
        }
    };
    const auto lists = [&](int r, int n) {
        std::vector<Parameter> list;
        list.push_back(make("rows", {64, 33}, Sharding::sharded(0, 64, 4, r, n)));
        list.push_back(make("columns", {33, 64}, Sharding::sharded(1, 64, 4, r, n)));
        list.push_back(make("kv", {2, 40}, Sharding::sharded_by_head(0, 2, 1, r, n)));
        list.push_back(make("norm", {1000}, Sharding::replicated(r, n)));
        return list;
    };
    std::vector<Parameter> mine = lists(rank, size), all = lists(0, 1);
    const ParameterBuckets buckets(testing::pointers_to(mine), Device::kCpu);
    const ParameterBuckets whole(testing::pointers_to(all), Device::kCpu);
    fill(mine);
    fill(all);
    double want = 0;
    for (const Parameter& p : all) {
        for (double value : testing::to_doubles(p.grad)) want += value * value;
    }
    const Tensor total = Tensor::full({1}, 7.0f, DType::kFloat64);  // what it held is forgotten
    squared_gradient_norm(grid, buckets, total);
    const double norm = std::sqrt(total.data<double>()[0]);
    EXPECT_NEAR(norm, std::sqrt(want), 1e-12 * std::sqrt(want));
    EXPECT_EQ(norm, world().all_reduce_scalar(norm, ReduceOp::kMax)) << "not the same on all ranks";
}

TEST(ProcessGridTest, NeighboursShareALayerAndReplicasShareAHead) {
    const int rank = world().rank(), size = world().size();
    const int tp = size >= 4 ? size / 2 : size;
    const ProcessGrid grid = make_grid(tp);
    EXPECT_EQ(grid.tp_rank(), rank % tp);
    EXPECT_EQ(grid.dp_rank(), rank / tp);
    EXPECT_EQ(grid.tp_size() * grid.dp_size(), size);
    double tensor_sum = 0, data_sum = 0;
    for (int r = 0; r < size; ++r) {
        if (r / tp == rank / tp) tensor_sum += r;
        if (r % tp == rank % tp) data_sum += r;
    }
    EXPECT_EQ(grid.tensor().all_reduce_scalar(rank, ReduceOp::kSum), tensor_sum);
    EXPECT_EQ(grid.data().all_reduce_scalar(rank, ReduceOp::kSum), data_sum);

    const ProcessGrid all = make_grid(size);
    if (size > 2) {
        EXPECT_EQ(all.kv_replicas(2).size(), size / 2);
        EXPECT_EQ(all.kv_replicas(2).rank(), rank % (size / 2));
        EXPECT_THROW(all.kv_replicas(3), Error);
    }
    EXPECT_EQ(all.kv_replicas(8).size(), 1);
}

}  // namespace
}  // namespace evenkeel
