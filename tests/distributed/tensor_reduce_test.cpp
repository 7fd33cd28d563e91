// Gradients follow what each parameter declares, and nothing else. Every rank's gradient differs from
// every other's, so that a sum too many or too few shows.
#include "parallel/tensor_reduce.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/data.h"
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
    Parameter p = make_parameter(name, shape, sharding, DType::kFloat32);
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
    // Names that other systems act on must not matter here; sizes are on both sides of the packing.
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
    ParameterList pointers;
    for (Parameter& p : list) {
        p.grad.fill(static_cast<float>(rank + 1));
        pointers.push_back(&p);
    }
    reduce_gradients(grid, pointers, 2);
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
    ParameterList pointers;
    for (Parameter& p : list) pointers.push_back(&p);
    reduce_gradients(grid, pointers, 2);
    EXPECT_EQ(grid.tensor().counts().all_reduces, size > 1 ? 1 : 0);
    for (Parameter& p : list) p.gradient_sum = GradientSum::kNone;
    reduce_gradients(grid, pointers, 2);
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
    ParameterList pointers = {&list[0], &list[1]};
    for (Parameter& p : list) p.grad.fill(static_cast<float>(1 + world().rank()));
    reduce_gradients(grid, pointers, 4);
    expect_grad(list[0], triangle(size) / grid.dp_size());
    double over_data = 0;  // of ranks tp_rank, tp_rank + tp, ..
    for (int d = 0; d < grid.dp_size(); ++d) over_data += 1 + d * tp + grid.tp_rank();
    expect_grad(list[1], over_data / grid.dp_size());
}

TEST(GradientNormTest, CountsEveryElementOnceAtAnySize) {
    const int rank = world().rank(), size = world().size();
    const ProcessGrid grid = make_grid(size);
    const auto make = [&](const std::string& name, const Shape& shape, const Sharding& sharding) {
        Parameter p = parameter(name, shape, sharding, GradientSum::kNone);
        // The gradient of the global tensor, cut as the parameter is.
        init_normal(p, 1.0, 11);
        p.grad.copy_from(p.master);
        return p;
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
    double want = 0;
    for (const Parameter& p : all) {
        for (double value : testing::to_doubles(p.grad)) want += value * value;
    }
    ParameterList pointers;
    for (Parameter& p : mine) pointers.push_back(&p);
    const double norm = gradient_norm(grid, pointers);
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
