// Column- and row-parallel products, forward and backward, against double on the whole matrices.
#include "parallel/linear.h"

#include <gtest/gtest.h>

#include "parallel/tensor_reduce.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/parameters.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::near;
using testing::to_doubles;
using testing::world;

constexpr std::int64_t kBatch = 2, kPositions = 5, kWidth = 24;
constexpr std::int64_t kTokens = kBatch * kPositions;

// op(a) op(b) with op(a) [m, k], op(b) [k, n].
std::vector<double> product(const std::vector<double>& a,
                            bool transpose_a,
                            const std::vector<double>& b,
                            bool transpose_b,
                            std::int64_t m,
                            std::int64_t n,
                            std::int64_t k) {
    std::vector<double> c(static_cast<std::size_t>(m * n), 0.0);
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
            for (std::int64_t p = 0; p < k; ++p) {
                c[i * n + j] +=
                    a[transpose_a ? p * m + i : i * k + p] * b[transpose_b ? j * k + p : p * n + j];
            }
        }
    }
    return c;
}

// Columns [begin, end) of each row.
std::vector<double> columns(const std::vector<double>& x,
                            std::int64_t width,
                            std::int64_t begin,
                            std::int64_t end) {
    std::vector<double> out;
    for (std::size_t row = 0; row * width < x.size(); ++row) {
        out.insert(out.end(), x.begin() + row * width + begin, x.begin() + row * width + end);
    }
    return out;
}

Tensor columns(const Tensor& x, std::int64_t begin, std::int64_t end) {
    return x.slice(-1, begin, end).clone();
}

class LinearTest : public ::testing::TestWithParam<DType> {
  protected:
    LinearTest() {
        ParallelConfig config;
        config.tensor_parallel = world().size();
        grid_ = std::make_unique<ProcessGrid>(world(), config);
    }
    // Values of the storage type; the bounds hold for sums of a few hundred of them.
    double relative() const { return GetParam() == DType::kFloat32 ? 1e-5 : 1.0 / 64; }
    double absolute() const { return GetParam() == DType::kFloat32 ? 1e-5 : 0.05; }
    void fill(const Parameter& parameter) {
        init_normal(parameter, 1.0, 7);
        // The double reference starts from what the layer holds.
        if (GetParam() == DType::kBFloat16) parameter.master.copy_from(parameter.value);
    }
    // The whole weight, as rank-independent initialisation makes it.
    std::vector<double> whole(const Parameter& parameter) {
        Parameter all = testing::make_parameter(parameter.name, parameter.global_shape,
                                                Sharding::replicated(0, 1), GetParam());
        init_normal(all, 1.0, 7);
        return to_doubles(all.value);
    }
    std::unique_ptr<ProcessGrid> grid_;
    const int rank_ = world().rank();
    const int size_ = world().size();
};

TEST_P(LinearTest, ColumnParallelMatchesDouble) {
    // Three parts in one product, as q, k and v: 8 heads of 4, and 2 heads of 4, replicated on more than 2
    // ranks.
    const auto heads = [&](std::int64_t n) {
        return Sharding::sharded_by_head(0, n, 4, rank_, size_);
    };
    ColumnParallelLinear layer(*grid_,
                               {{"q", 32, heads(8), GradientSum::kNone},
                                {"k", 8, heads(2), GradientSum::kReplicaGroup},
                                {"v", 8, heads(2), GradientSum::kReplicaGroup}},
                               kWidth, GetParam());
    ParameterList parameters;
    layer.collect_parameters(parameters);
    ASSERT_EQ(parameters.size(), 3u);
    const ParameterBuckets memory = testing::allocate(layer);
    for (Parameter* parameter : parameters) fill(*parameter);
    const Tensor x = gaussian({kBatch, kPositions, kWidth}, GetParam(), 1);
    const Tensor y = layer.forward(x);
    check_shape("test", "y", y, {kBatch, kPositions, layer.local_out_features()});

    // Each rank's gradient differs: it is a function of the rank, also between replicas.
    std::vector<double> dx_want(kTokens * kWidth, 0.0);
    Tensor dy_mine;
    for (int r = 0; r < size_; ++r) {
        const Tensor dy = gaussian({kBatch, kPositions, layer.local_out_features()}, GetParam(),
                                   50 + static_cast<std::uint64_t>(r));
        if (r == rank_) dy_mine = dy;
        const auto dy_double = to_doubles(dy);
        for (int part = 0; part < 3; ++part) {
            const Parameter& p = layer.part(part);
            const std::int64_t rows = layer.part_end(part) - layer.part_begin(part);
            const std::int64_t num_heads = part == 0 ? 8 : 2;
            const Sharding s = Sharding::sharded_by_head(0, num_heads, 4, r, size_);
            const auto w = whole(p);
            const std::vector<double> w_r(w.begin() + s.begin * kWidth, w.begin() + s.end * kWidth);
            const auto dy_part = columns(dy_double, layer.local_out_features(),
                                         layer.part_begin(part), layer.part_end(part));
            const auto contribution = product(dy_part, false, w_r, false, kTokens, kWidth, rows);
            for (std::size_t i = 0; i < dx_want.size(); ++i) dx_want[i] += contribution[i];
        }
    }
    const Tensor dx = layer.backward(dy_mine, x);
    layer.backward(dy_mine, x);  // adds a second time
    EXPECT_TRUE(near(dx, dx_want, relative(), absolute() * size_)) << "dx";
    for (int part = 0; part < 3; ++part) {
        const Parameter& p = layer.part(part);
        const std::int64_t rows = layer.part_end(part) - layer.part_begin(part);
        const auto w = whole(p);
        const std::vector<double> w_mine(w.begin() + p.sharding.begin * kWidth,
                                         w.begin() + p.sharding.end * kWidth);
        EXPECT_TRUE(near(columns(y, layer.part_begin(part), layer.part_end(part)),
                         product(to_doubles(x), false, w_mine, true, kTokens, rows, kWidth),
                         relative(), absolute()))
            << p.name;
        auto dw = product(columns(to_doubles(dy_mine), layer.local_out_features(),
                                  layer.part_begin(part), layer.part_end(part)),
                          true, to_doubles(x), false, rows, kWidth, kTokens);
        for (double& value : dw) value *= 2;
        EXPECT_TRUE(near(p.grad, dw, 1e-5, 1e-5)) << p.name << " gradient";
    }
    EXPECT_EQ(grid_->tensor().counts().all_reduces, 2) << "one a backward pass, none forward";
}

TEST_P(LinearTest, RowParallelMatchesDouble) {
    constexpr std::int64_t kIn = 32;
    RowParallelLinear layer(*grid_, "o", kIn, kWidth, Sharding::sharded(1, kIn, 4, rank_, size_),
                            GetParam());
    const ParameterBuckets memory = testing::allocate(layer);
    fill(layer.weight());
    const std::int64_t local = kIn / size_, begin = local * rank_;
    const Tensor x = gaussian({kBatch, kPositions, kIn}, GetParam(), 1);
    const Tensor dy = gaussian({kBatch, kPositions, kWidth}, GetParam(), 2);
    const Tensor x_mine = x.slice(2, begin, begin + local);  // strided
    const auto w = whole(layer.weight());
    const Tensor y = layer.forward(x_mine);
    EXPECT_TRUE(near(y, product(to_doubles(x), false, w, true, kTokens, kWidth, kIn), relative(),
                     absolute() * size_));
    const Tensor dx = layer.backward(dy, x_mine);
    EXPECT_TRUE(near(dx,
                     columns(product(to_doubles(dy), false, w, false, kTokens, kIn, kWidth), kIn,
                             begin, begin + local),
                     relative(), absolute()));
    EXPECT_TRUE(
        near(layer.weight().grad,
             columns(product(to_doubles(dy), true, to_doubles(x), false, kWidth, kIn, kTokens), kIn,
                     begin, begin + local),
             1e-5, 1e-5));
    EXPECT_EQ(grid_->tensor().counts().all_reduces, 1);
}

// The bias of a cut weight is cut with it; of the KV heads, which see other queries on every rank, gradients
// are summed over those that hold them.
TEST_P(LinearTest, ColumnParallelBiasesAreCutWithTheirRows) {
    const auto heads = [&](std::int64_t n) {
        return Sharding::sharded_by_head(0, n, 4, rank_, size_);
    };
    const std::vector<ColumnParallelLinear::Part> parts = {
        {"q", 32, heads(8), GradientSum::kNone}, {"k", 8, heads(2), GradientSum::kReplicaGroup}};
    ColumnParallelLinear layer(*grid_, parts, kWidth, GetParam(), true);
    ColumnParallelLinear plain(*grid_, parts, kWidth, GetParam());
    const ParameterBuckets memory = testing::allocate(layer),
                           plain_memory = testing::allocate(plain);
    for (int part = 0; part < 2; ++part) {
        fill(layer.part(part));
        fill(plain.part(part));
        const Parameter& bias = layer.bias(part);
        EXPECT_EQ(bias.name, layer.part(part).name + "_bias");
        EXPECT_EQ(bias.dtype, DType::kFloat32);
        EXPECT_FALSE(bias.weight_decay);
        EXPECT_EQ(bias.sharding.begin, layer.part(part).sharding.begin);
        EXPECT_EQ(bias.sharding.end, layer.part(part).sharding.end);
        EXPECT_EQ(bias.gradient_sum, layer.part(part).gradient_sum);
    }
    const Tensor x = gaussian({kBatch, kPositions, kWidth}, GetParam(), 1);
    EXPECT_TRUE(testing::same_bits(layer.forward(x), plain.forward(x))) << "biases start at 0";

    for (int part = 0; part < 2; ++part) init_normal(layer.bias(part), 1.0, 9);
    const Tensor y = layer.forward(x), without = plain.forward(x);
    const Tensor dy = gaussian(y.shape(), GetParam(), 50 + static_cast<std::uint64_t>(rank_));
    layer.backward(dy, x);
    reduce_gradients(*grid_, memory, 2);
    for (int part = 0; part < 2; ++part) {
        const Parameter& bias = layer.bias(part);
        const std::int64_t begin = layer.part_begin(part), end = layer.part_end(part);
        const auto b = to_doubles(bias.value);
        auto want = to_doubles(columns(without, begin, end));
        for (std::size_t i = 0; i < want.size(); ++i) want[i] += b[i % b.size()];
        EXPECT_TRUE(near(columns(y, begin, end), want, relative(), absolute())) << bias.name;

        std::vector<double> sums(b.size(), 0.0);
        const int replicas = bias.sharding.replicas;
        const int first = rank_ - bias.sharding.replica_index;
        for (int r = first; r < first + replicas; ++r) {
            const auto d = to_doubles(columns(
                gaussian(y.shape(), GetParam(), 50 + static_cast<std::uint64_t>(r)), begin, end));
            for (std::size_t i = 0; i < d.size(); ++i) sums[i % sums.size()] += d[i];
        }
        EXPECT_TRUE(near(bias.grad, sums, 1e-5, 1e-5)) << bias.name;
    }
}

TEST_P(LinearTest, RowParallelBiasIsAddedOnce) {
    constexpr std::int64_t kIn = 32;
    RowParallelLinear layer(*grid_, "o", kIn, kWidth, Sharding::sharded(1, kIn, 4, rank_, size_),
                            GetParam(), true);
    const ParameterBuckets memory = testing::allocate(layer);
    fill(layer.weight());
    ASSERT_TRUE(layer.has_bias());
    EXPECT_EQ(layer.bias().name, "o_bias");
    EXPECT_EQ(layer.bias().sharding.kind, Sharding::Kind::kReplicated);
    EXPECT_EQ(layer.bias().gradient_sum, GradientSum::kNone);
    EXPECT_FALSE(layer.bias().weight_decay);
    const std::int64_t local = kIn / size_, begin = local * rank_;
    const Tensor x = gaussian({kBatch, kPositions, kIn}, GetParam(), 1);
    const Tensor x_mine = x.slice(2, begin, begin + local);
    const Tensor without = layer.forward(x_mine);
    init_normal(layer.bias(), 1.0, 9);
    auto want = to_doubles(without);
    const auto b = to_doubles(layer.bias().value);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += b[i % b.size()];
    EXPECT_TRUE(near(layer.forward(x_mine), want, relative(), 1e-6));

    // Whole on each rank, and the same bits.
    const Tensor dy = gaussian({kBatch, kPositions, kWidth}, GetParam(), 2);
    layer.backward(dy, x_mine);
    reduce_gradients(*grid_, memory, 2);
    std::vector<double> sums(b.size(), 0.0);
    const auto d = to_doubles(dy);
    for (std::size_t i = 0; i < d.size(); ++i) sums[i % sums.size()] += d[i];
    EXPECT_TRUE(near(layer.bias().grad, sums, 1e-5, 1e-5));
    const Tensor first = layer.bias().grad.clone();
    world().broadcast(first, 0);
    EXPECT_TRUE(testing::same_bits(layer.bias().grad, first));
    EXPECT_EQ(grid_->tensor().counts().all_reduces, 2) << "one a forward pass";
}

TEST_P(LinearTest, EmptyBatchIsNoError) {
    ColumnParallelLinear column(
        *grid_, {{"c", 32, Sharding::sharded(0, 32, 1, rank_, size_), GradientSum::kNone}}, kWidth,
        GetParam());
    const ParameterBuckets memory = testing::allocate(column);
    const Tensor x = Tensor::zeros({0, 3, kWidth}, GetParam());
    EXPECT_EQ(column.forward(x).shape(), (Shape{0, 3, 32 / size_}));
    EXPECT_EQ(column.backward(Tensor::zeros({0, 3, 32 / size_}, GetParam()), x).shape(), x.shape());
}

TEST_P(LinearTest, RejectsWrongShapes) {
    ColumnParallelLinear column(
        *grid_, {{"c", 32, Sharding::sharded(0, 32, 1, rank_, size_), GradientSum::kNone}}, kWidth,
        GetParam());
    const ParameterBuckets memory = testing::allocate(column);
    EXPECT_THROW(column.forward(Tensor::zeros({1, 2, kWidth + 1}, GetParam())), Error);
    EXPECT_THROW(column.forward(Tensor::zeros({2, kWidth}, GetParam())), Error);
    EXPECT_THROW(
        RowParallelLinear(*grid_, "o", 32, 8, Sharding::sharded(0, 8, 1, rank_, size_), GetParam()),
        Error);
}

INSTANTIATE_TEST_SUITE_P(Types,
                         LinearTest,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace evenkeel
