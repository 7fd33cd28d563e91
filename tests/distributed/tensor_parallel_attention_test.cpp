// The attention layer cut over all ranks against the same layer on one rank, which every rank runs for
// itself. Heads have unequal data, so that a partial sum never looks like a whole one.
#include "attention/tensor_parallel_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "framework/optimizer/adamw.h"
#include "framework/rng.h"
#include "parallel/tensor_reduce.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/parameters.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::near;
using testing::relative_difference;
using testing::same_bits;
using testing::to_doubles;
using testing::world;

constexpr DType kFp32 = DType::kFloat32;
constexpr std::int64_t kBatch = 2, kTokens = 33, kWidth = 40;
constexpr double kTolerance = 1e-5;  // of a tensor's largest element

// A layer on its own grid.
class Layer {
  public:
    Layer(Communicator& ranks, const AttentionConfig& config)
        : grid_(ranks, parallel_config(ranks)), layer_(grid_, config, kWidth, kFp32, "layers.0") {
        layer_.collect_parameters(parameters_);
        buckets_ = ParameterBuckets(parameters_, Device::kCpu);
        layer_.initialize(1.0 / std::sqrt(double(kWidth)), 0.1, 3);
        for (Parameter* p : parameters_) {
            const std::string& name = p->name;
            if (name.ends_with("gain") || name.ends_with("sink") || name.ends_with("bias")) {
                init_normal(*p, 1.0, 4);
            }
        }
    }
    TensorParallelAttention* operator->() { return &layer_; }
    const ProcessGrid& grid() const { return grid_; }
    const ParameterList& parameters() const { return parameters_; }
    const ParameterBuckets& buckets() const { return buckets_; }

    // Forward and backward with completed gradients.
    void step(const Tensor& x, const Tensor& dy) {
        AttentionSaved saved;
        y = layer_.forward(x, {}, saved, &stats);
        dx = layer_.backward(dy.defined() ? dy : y, {}, saved);  // of y^2 / 2 without dy
        reduce_gradients(grid_, buckets_, layer_.config().num_kv_heads);
    }
    double squared_norm() const {
        const Tensor total = Tensor::uninitialized({1}, DType::kFloat64);
        squared_gradient_norm(grid_, buckets_, total);
        return total.data<double>()[0];
    }

    Tensor y, dx;
    AttentionStats stats;

  private:
    static ParallelConfig parallel_config(Communicator& ranks) {
        ParallelConfig config;
        config.tensor_parallel = ranks.size();
        return config;
    }
    ProcessGrid grid_;
    TensorParallelAttention layer_;
    ParameterList parameters_;
    ParameterBuckets buckets_;
};

double largest(const Tensor& tensor) {
    double result = 0.0;
    for (const double value : to_doubles(tensor)) result = std::max(result, std::abs(value));
    return result;
}

// This rank's part of a whole tensor.
Tensor part_of(const Tensor& whole, const Sharding& sharding) {
    if (sharding.kind == Sharding::Kind::kReplicated) return whole;
    return whole.slice(sharding.dim, sharding.begin, sharding.end);
}

::testing::AssertionResult equals_part(const Tensor& got, const Tensor& whole, const Parameter& p) {
    return near(got, part_of(whole, p.sharding), 0.0, kTolerance * largest(whole));
}

// Every rank of the group holds the same bits.
::testing::AssertionResult same_on_all(Communicator& group, const Tensor& tensor) {
    const Tensor mine = tensor.clone();
    group.broadcast(mine, 0);
    return same_bits(tensor, mine);
}

// The group of ranks that hold the same elements of a parameter.
Communicator& holders(const Layer& layer, const Parameter& p, std::int64_t num_kv_heads) {
    return p.sharding.kind == Sharding::Kind::kReplicated ? layer.grid().tensor()
                                                          : layer.grid().kv_replicas(num_kv_heads);
}

struct Variant {
    const char* name;
    std::int64_t num_kv_heads;
    QkNormConfig::Kind kind;
    QkNormConfig::Gain gain;
    QkNormConfig::Scope scope = QkNormConfig::Scope::kHead;
    AttentionConfig::Sink sink = AttentionConfig::Sink::kNone;
    bool biases = false;
};

class TensorParallelAttentionRanks : public ::testing::TestWithParam<Variant> {
  protected:
    TensorParallelAttentionRanks() {
        config_.num_heads = 8;
        config_.num_kv_heads = GetParam().num_kv_heads;
        config_.head_dim = 32;
        config_.qk_norm.kind = GetParam().kind;
        config_.qk_norm.gain = GetParam().gain;
        config_.qk_norm.scope = GetParam().scope;
        config_.sink = GetParam().sink;
        config_.qkv_bias = config_.output_bias = GetParam().biases;
    }
    AttentionConfig config_;
    std::unique_ptr<Communicator> alone_ = make_single_communicator();
    Tensor x_ = gaussian({kBatch, kTokens, kWidth}, kFp32, 1);
    Tensor dy_ = gaussian({kBatch, kTokens, kWidth}, kFp32, 2);
};

using Kind = QkNormConfig::Kind;
using Gain = QkNormConfig::Gain;
using Scope = QkNormConfig::Scope;
INSTANTIATE_TEST_SUITE_P(
    All,
    TensorParallelAttentionRanks,
    ::testing::Values(
        Variant{"kv8", 8, Kind::kRms, Gain::kPerHeadChannel},
        Variant{"kv2", 2, Kind::kRms, Gain::kPerHeadChannel},
        Variant{"kv1", 1, Kind::kRms, Gain::kPerHeadChannel},
        Variant{"kv2_shared_gain", 2, Kind::kRms, Gain::kSharedChannel},
        Variant{"kv2_plain", 2, Kind::kNone, Gain::kPerHeadChannel},
        Variant{"kv8_full_width", 8, Kind::kRms, Gain::kPerHeadChannel, Scope::kFullWidth},
        Variant{"kv2_full_width", 2, Kind::kRms, Gain::kPerHeadChannel, Scope::kFullWidth},
        Variant{"kv1_full_width_shared_gain", 1, Kind::kRms, Gain::kSharedChannel,
                Scope::kFullWidth},
        Variant{"kv2_layer_norm", 2, Kind::kLayerNorm, Gain::kPerHeadChannel},
        Variant{"kv2_henry", 2, Kind::kL2, Gain::kPerHeadScalar},
        Variant{"kv2_henry_module", 2, Kind::kL2, Gain::kScalar},
        Variant{"kv2_sink", 2, Kind::kNone, Gain::kPerHeadChannel, Scope::kHead,
                AttentionConfig::Sink::kLearned},
        Variant{"kv8_biases", 8, Kind::kRms, Gain::kPerHeadChannel, Scope::kHead,
                AttentionConfig::Sink::kNone, true},
        Variant{"kv2_biases_plain", 2, Kind::kNone, Gain::kPerHeadChannel, Scope::kHead,
                AttentionConfig::Sink::kNone, true},
        Variant{"kv1_biases_shared_gain", 1, Kind::kRms, Gain::kSharedChannel, Scope::kHead,
                AttentionConfig::Sink::kNone, true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(TensorParallelAttentionRanks, EqualsOneRank) {
    Layer one(*alone_, config_), all(world(), config_);
    one.step(x_, dy_);
    all.step(x_, dy_);
    EXPECT_TRUE(near(all.y, one.y, 0.0, kTolerance * largest(one.y)));
    EXPECT_TRUE(near(all.dx, one.dx, 0.0, kTolerance * largest(one.dx)));
    EXPECT_TRUE(same_on_all(world(), all.y));
    EXPECT_TRUE(same_on_all(world(), all.dx));
    for (std::size_t i = 0; i < all.parameters().size(); ++i) {
        const Parameter& p = *all.parameters()[i];
        const Parameter& whole = *one.parameters()[i];
        EXPECT_TRUE(same_bits(p.value, part_of(whole.value, p.sharding))) << p.name;
        EXPECT_TRUE(equals_part(p.grad, whole.grad, p)) << p.name;
        if (p.sharding.replicas > 1) {
            EXPECT_TRUE(same_on_all(holders(all, p, config_.num_kv_heads), p.grad)) << p.name;
        }
    }
    EXPECT_LT(relative_difference(all.squared_norm(), one.squared_norm()), 2e-5);
    // Telemetry is that of this rank's heads.
    const std::int64_t local = all->local_heads(), first = world().rank() * local;
    EXPECT_TRUE(
        near(all.stats.max_logit, one.stats.max_logit.slice(0, first, first + local), 1e-5, 1e-6));
    EXPECT_TRUE(
        near(all.stats.entropy, one.stats.entropy.slice(0, first, first + local), 1e-5, 1e-6));
}

TEST_P(TensorParallelAttentionRanks, DecodingEqualsOneRank) {
    Layer one(*alone_, config_), all(world(), config_);
    KvCache one_cache = one->make_cache(kBatch, kTokens), cache = all->make_cache(kBatch, kTokens);
    for (std::int64_t begin = 0, end = 9; end <= 12; begin = end, ++end) {
        const Tensor tokens = x_.slice(1, begin, end).clone();
        const Tensor want = one->decode(tokens, one_cache);
        EXPECT_TRUE(near(all->decode(tokens, cache), want, 0.0, kTolerance * largest(want)));
    }
}

TEST_P(TensorParallelAttentionRanks, OneSumForwardAndOneBackward) {
    Layer layer(world(), config_);
    CommunicationCounts& counts = layer.grid().tensor().counts();
    Communicator& replicas = layer.grid().kv_replicas(config_.num_kv_heads);
    const auto others = [&] {
        return counts.reduce_scatters + counts.all_gathers + counts.broadcasts;
    };
    const std::int64_t bytes = kBatch * kTokens * kWidth * 4;
    // One statistic for all heads costs a sum of two numbers a token in each direction.
    const bool full_width = GetParam().scope == Scope::kFullWidth;
    const std::int64_t sums = full_width ? 2 : 1;
    const std::int64_t all_bytes = bytes + (full_width ? kBatch * kTokens * 2 * 4 : 0);
    AttentionSaved saved;
    counts = {};
    replicas.counts() = {};
    layer->forward(x_, {}, saved, nullptr);
    EXPECT_EQ(counts.all_reduces, sums);
    EXPECT_EQ(counts.bytes, all_bytes);
    layer->backward(dy_, {}, saved);
    EXPECT_EQ(counts.all_reduces, 2 * sums);
    EXPECT_EQ(counts.bytes, 2 * all_bytes);
    EXPECT_EQ(others(), 0);
    EXPECT_EQ(replicas.counts().all_reduces, 0);

    // Per-head gains are not communicated, but for those of replicated KV heads: a message for these and for
    // biases, one for the heads' weights.
    reduce_gradients(layer.grid(), layer.buckets(), config_.num_kv_heads);
    const bool normed = GetParam().kind != Kind::kNone;
    const bool shared =
        normed && (GetParam().gain == Gain::kSharedChannel || GetParam().gain == Gain::kScalar);
    EXPECT_EQ(counts.all_reduces, 2 * sums + (shared && world().size() > 1 ? 1 : 0));
    const bool vectors = (normed && GetParam().gain == Gain::kPerHeadChannel) || config_.qkv_bias;
    EXPECT_EQ(replicas.counts().all_reduces, replicas.size() == 1 ? 0 : vectors ? 2 : 1);
    EXPECT_EQ(others(), 0);
}

// 20 steps of AdamW on the mean square of y, with other data in each.
TEST_P(TensorParallelAttentionRanks, TrainsAsOneRankDoes) {
    Layer one(*alone_, config_), all(world(), config_);
    for (int step = 1; step <= 20; ++step) {
        const Tensor x = gaussian({kBatch, kTokens, kWidth}, kFp32, 100 + step);
        for (Layer* layer : {&one, &all}) {
            layer->buckets().zero_gradients();
            layer->step(x, {});
            adamw_step(layer->buckets(), {}, 1e-3, 0.0, testing::step_numbers(0.0, 0.0), step);
        }
    }
    for (std::size_t i = 0; i < all.parameters().size(); ++i) {
        const Parameter& p = *all.parameters()[i];
        EXPECT_TRUE(equals_part(p.value, one.parameters()[i]->value, p)) << p.name;
        if (p.sharding.replicas == 1) continue;
        Communicator& group = holders(all, p, config_.num_kv_heads);
        EXPECT_TRUE(same_on_all(group, p.value)) << p.name;
        EXPECT_TRUE(same_on_all(group, p.exp_avg)) << p.name;
        EXPECT_TRUE(same_on_all(group, p.exp_avg_sq)) << p.name;
    }
}

TEST(TensorParallelAttentionTest, ImpossibleDivisionsAreErrorsAtConstruction) {
    const int size = world().size();
    AttentionConfig config;
    config.head_dim = 32;
    ParallelConfig parallel;
    parallel.tensor_parallel = size;
    const ProcessGrid grid(world(), parallel);
    const auto construct = [&] {
        TensorParallelAttention layer(grid, config, kWidth, kFp32, "layer");
    };
    config.num_heads = 3 * size, config.num_kv_heads = 3;
    if (size == 1) return construct();
    EXPECT_THROW(construct(), Error);  // 3 KV heads on 2, 4 or 8 ranks
    config.num_heads = size + 1, config.num_kv_heads = 1;
    EXPECT_THROW(construct(), Error);
}

}  // namespace
}  // namespace evenkeel
