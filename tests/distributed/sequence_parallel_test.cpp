// Sequence parallelism against the same model without it, on the same ranks: every rank then holds a part of the
// rows of the stream, cut anywhere, in the middle of a sequence too.
#include <gtest/gtest.h>

#include <cmath>

#include "model/generate.h"
#include "model/method.h"
#include "tests/support/data.h"
#include "tests/support/parameters.h"
#include "tests/support/sharded_models.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::distance;
using testing::gaussian;
using testing::GridShape;
using testing::random_batch;
using testing::same_bits;
using testing::TrainingCurve;
using testing::world;

ProcessGrid grid_of(const GridShape& shape, bool sequence_parallel) {
    return ProcessGrid(world(), {.tensor_parallel = shape.tensor,
                                 .data_parallel = shape.data,
                                 .sequence_parallel = sequence_parallel});
}

// Those in which ranks share layers.
std::vector<GridShape> shapes() {
    std::vector<GridShape> all;
    for (const GridShape& shape : testing::grid_shapes()) {
        if (shape.tensor > 1) all.push_back(shape);
    }
    return all;
}

// Two KV heads, so that four tensor-parallel ranks replicate them.
ModelConfig test_model() {
    ModelConfig config = testing::tiny_model();
    config.attention.num_heads = 8;
    config.attention.num_kv_heads = 2;
    return config;
}

// 60 tokens; 30 of each of two data-parallel ranks. Parts of 30 and 15 rows end inside of sequences of 10.
Batch odd_batch(const LanguageModel& model, std::uint64_t seed) {
    return testing::part_of(random_batch(6, 10, model.config().vocab_size, seed), model);
}

// On micro-batches of as many tokens.
TrainingCurve train_steps(LanguageModel& model, int first, int steps) {
    return testing::train_steps(model, first, steps, 6, 10);
}

struct Variant {
    std::string name;
    ModelConfig config;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::vector<Variant> variants() {
    std::vector<Variant> all;
    for (const Method* method : methods()) {
        all.push_back({method->name, test_model()});
        apply_method(method->name, all.back().config);
    }
    for (const testing::FamilyTraits& family : testing::kFamilyTraits) {
        all.push_back({family.name, test_model()});
        family.apply(all.back().config);
    }
    all.push_back({"Biases", test_model()});
    AttentionConfig& attention = all.back().config.attention;
    attention.qkv_bias = attention.output_bias = all.back().config.feed_forward_bias = true;
    all.push_back({"Gelu", test_model()});
    all.back().config.activation = Activation::kGelu;
    all.push_back({"SharedGainsTied", test_model()});
    all.back().config.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
    all.back().config.tied_embeddings = true;
    return all;
}

void vary_gains(LanguageModel& model) {
    if (model.config().architecture != Architecture::kNgpt) testing::randomize_gains(model);
}

// Loss and squared norm of a step's gradients, which are left reduced.
std::pair<double, double> gradients_of(LanguageModel& model, std::span<const Batch> batches) {
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    compute_gradients(model, batches, numbers);
    return {numbers.data<double>()[kLossIndex], numbers.data<double>()[kSquaredNormIndex]};
}

class SequenceParallel : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(, SequenceParallel, ::testing::ValuesIn(variants()), [](const auto& info) {
    return info.param.name;
});

// Rows are summed over ranks in the same order as without, and nothing else of a row changes: only what is summed
// over rows (gains of norms, biases of row-parallel layers, nGPT's rates) is summed in other groups.
TEST_P(SequenceParallel, GradientsHaveTheBitsOfThoseWithoutItBesideSumsOverRows) {
    for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16}) {
        ModelConfig config = GetParam().config;
        config.type = type;
        for (const GridShape& shape : shapes()) {
            const ProcessGrid whole = grid_of(shape, false), cut = grid_of(shape, true);
            SCOPED_TRACE(testing::name_of(cut) + (type == ComputeType::kBf16 ? ", bf16" : ""));
            LanguageModel without(whole, config, 1), with(cut, config, 1);
            vary_gains(without), vary_gains(with);
            const Batch batches[] = {odd_batch(with, 3), odd_batch(with, 4)};
            const auto [want_loss, want_square] = gradients_of(without, batches);
            const auto [loss, square] = gradients_of(with, batches);
            EXPECT_EQ(loss, want_loss);
            EXPECT_NEAR(square / want_square, 1.0, 2e-6) << "every gradient counts once";
            int over_rows = 0;
            for (std::size_t i = 0; i < with.parameters().size(); ++i) {
                const Parameter &got = *with.parameters()[i], &want = *without.parameters()[i];
                ASSERT_EQ(got.name, want.name);
                if (got.gradient_sum == want.gradient_sum) {
                    EXPECT_TRUE(same_bits(got.grad, want.grad)) << got.name;
                    continue;
                }
                ++over_rows;
                EXPECT_EQ(got.gradient_sum, GradientSum::kTensorParallel) << got.name;
                EXPECT_LT(distance(got.grad, want.grad), 2e-6) << got.name;
                EXPECT_GT(distance(want.grad, Tensor::zeros(want.grad.shape(), DType::kFloat32)),
                          0.0)
                    << got.name;
            }
            EXPECT_GT(over_rows, 0);
        }
    }
}

TEST_P(SequenceParallel, TrainsAsWithoutItAndKeepsReplicasEqual) {
    const ModelConfig config = GetParam().config;
    for (const GridShape& shape : shapes()) {
        const ProcessGrid whole = grid_of(shape, false), cut = grid_of(shape, true);
        SCOPED_TRACE(testing::name_of(cut));
        LanguageModel without(whole, config, 1), with(cut, config, 1);
        vary_gains(without), vary_gains(with);
        const TrainingCurve want = train_steps(without, 0, 4), got = train_steps(with, 0, 4);
        for (std::size_t step = 0; step < want.losses.size(); ++step) {
            EXPECT_NEAR(got.losses[step], want.losses[step], 1e-5 * want.losses[step]) << step;
            EXPECT_NEAR(got.norms[step], want.norms[step], 1e-4 * want.norms[step]) << step;
        }
        for (std::size_t i = 0; i < with.parameters().size(); ++i) {
            EXPECT_LT(distance(with.parameters()[i]->master, without.parameters()[i]->master), 2e-4)
                << with.parameters()[i]->name;
        }
        testing::expect_equal_replicas(cut, with, config);
    }
}

TEST_P(SequenceParallel, EvaluatesAndDecodesAnyNumberOfTokensToTheSameBits) {
    const ModelConfig config = GetParam().config;
    for (const GridShape& shape : shapes()) {
        const ProcessGrid whole = grid_of(shape, false), cut = grid_of(shape, true);
        SCOPED_TRACE(testing::name_of(cut));
        LanguageModel without(whole, config, 1), with(cut, config, 1);
        vary_gains(without), vary_gains(with);
        for (const std::int64_t length : {1, 7, 8}) {
            for (const std::int64_t rows : {1, 3}) {
                const Batch batch = random_batch(rows, length, config.vocab_size, 5);
                EXPECT_EQ(with.evaluate(batch), without.evaluate(batch)) << rows << " x " << length;
            }
        }
        const auto of_with = with.start_decoding(3, 12), of_without = without.start_decoding(3, 12);
        const Tensor tokens = random_batch(3, 12, config.vocab_size, 6).tokens;
        for (std::int64_t begin = 0, end = 8; begin < 12; begin = end, ++end) {
            const Tensor next = tokens.slice(1, begin, end).contiguous();
            EXPECT_TRUE(same_bits(with.decode(*of_with, next), without.decode(*of_without, next)))
                << end;
        }
    }
}

struct Traffic {
    CommunicationCounts forward, pass, reduction;
};

Traffic traffic_of(const ProcessGrid& grid, const ModelConfig& config) {
    LanguageModel model(grid, config, 1);
    const Batch batch = random_batch(3, 8, config.vocab_size, 1);
    CommunicationCounts& counts = grid.tensor().counts();
    Traffic traffic;
    counts = {};
    model.local_logits(batch.tokens);
    traffic.forward = counts;
    counts = {};
    testing::forward_backward(model, batch);
    traffic.pass = counts;
    counts = {};
    reduce_gradients(grid, model.buckets(), config.attention.num_kv_heads);
    traffic.reduction = counts;
    return traffic;
}

TEST(SequenceParallelTraffic, GathersAndScattersWhatTheLayersReadAndReturn) {
    const GridShape shape{world().size(), 1};
    const ProcessGrid whole = grid_of(shape, false), cut = grid_of(shape, true);
    for (const Architecture architecture :
         {Architecture::kPreNorm, Architecture::kPostNorm, Architecture::kSandwichNorm,
          Architecture::kParallel, Architecture::kNgpt}) {
        for (const std::int64_t layers : {2, 5}) {
            ModelConfig config = test_model();
            if (architecture == Architecture::kNgpt) apply_method("ngpt", config);
            config.architecture = architecture;
            config.num_layers = layers;
            const Traffic got = traffic_of(cut, config), want = traffic_of(whole, config);
            // Behind the embedding the sum is scattered, before the projection its input gathered; backward the
            // same the other way round, and the input once more. The two layers of a parallel block share their input
            // and the gradient.
            const std::int64_t gathers =
                (architecture == Architecture::kParallel ? 1 : 2) * layers + 1;
            EXPECT_EQ(got.forward.all_reduces, 0);
            EXPECT_EQ(got.forward.reduce_scatters, 2 * layers + 1);
            EXPECT_EQ(got.forward.all_gathers, gathers);
            const std::int64_t stream = want.forward.bytes / want.forward.all_reduces;
            EXPECT_EQ(want.forward.all_reduces, 2 * layers + 1);
            EXPECT_EQ(got.forward.bytes, (2 * layers + 1 + gathers) * stream)
                << "a sum on all ranks is both";
            EXPECT_EQ(got.pass.all_reduces, 2) << "of the loss";
            EXPECT_EQ(got.pass.reduce_scatters, 4 * layers + 2);
            EXPECT_EQ(got.pass.all_gathers, 3 * gathers);
            EXPECT_EQ(got.pass.broadcasts, 0);
            EXPECT_EQ(got.reduction.all_reduces, want.reduction.all_reduces + 1)
                << "gains of all norms in one message";
            if (architecture != Architecture::kParallel) continue;
            for (const Recompute recompute :
                 {Recompute::kElementwise, Recompute::kAttention, Recompute::kFull}) {
                config.recompute = recompute;
                EXPECT_EQ(traffic_of(cut, config).pass.all_gathers, 3 * gathers)
                    << "what is made again reads what backward gathers";
            }
        }
    }
}

TEST(SequenceParallelModel, RefusesToTrainOnTokensThatRanksCannotShare) {
    const ProcessGrid cut = grid_of({world().size(), 1}, true);
    LanguageModel model(cut, test_model(), 1);
    const Batch batch = random_batch(1, 9, 32, 1);
    try {
        testing::forward_backward(model, batch);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        EXPECT_NE(std::string(error.what()).find("got 9 in a batch, want a multiple of"),
                  std::string::npos)
            << error.what();
    }
}

TEST(SequenceParallelModel, AllRanksNameTheTensorThatOneRankSpoiled) {
    const int last = world().size() - 1;
    for (const GridShape& shape : shapes()) {
        const ProcessGrid cut = grid_of(shape, true);
        LanguageModel model(cut, test_model(), 1);
        const Batch batch = odd_batch(model, 1);
        EXPECT_EQ(model.locate_non_finite({batch}), "");
        // The last token is in the last rank's part alone.
        const Tensor row = testing::find(model, "layers.1.feed_forward_norm").value;
        if (world().rank() == last) row.data<float>()[3] = INFINITY;
        EXPECT_EQ(model.locate_non_finite({batch}), "layers.1.feed_forward_norm (weight)");
        row.data<float>()[3] = world().rank() == last ? 3e38f : 1.0f;
        EXPECT_EQ(model.locate_non_finite({batch}), "layers.1.feed_forward_norm (forward)");
    }
}

TEST(SequenceParallelModel, TelemetryAndObservedAttentionAreThoseWithoutIt) {
    const ModelConfig config = test_model();
    for (const GridShape& shape : shapes()) {
        const ProcessGrid whole = grid_of(shape, false), cut = grid_of(shape, true);
        LanguageModel without(whole, config, 1), with(cut, config, 1);
        const Batch batch = odd_batch(with, 3);
        testing::forward_backward(without, batch);
        testing::forward_backward(with, batch);
        const auto want = without.head_metrics(), got = with.head_metrics();
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t table = 0; table < want.size(); ++table) {
            EXPECT_EQ(got[table].values, want[table].values) << got[table].name;
        }
        std::vector<Tensor> seen;
        without.observe(batch, [&](const LanguageModel::AttentionView& view) {
            seen.push_back(view.q.clone());
            seen.push_back(view.k.clone());
        });
        std::size_t next = 0;
        with.observe(batch, [&](const LanguageModel::AttentionView& view) {
            EXPECT_TRUE(same_bits(view.q, seen[next++]));
            EXPECT_TRUE(same_bits(view.k, seen[next++]));
        });
        EXPECT_EQ(next, seen.size());
    }
}

TEST(SequenceParallelModel, CheckpointsAreThoseOfAModelWithoutIt) {
    const ModelConfig config = test_model();
    const GridShape shape = shapes().back();
    const ProcessGrid whole = grid_of(shape, false), cut = grid_of(shape, true);
    const testing::SharedDirectory files;
    LanguageModel saved(cut, config, 1);
    train_steps(saved, 0, 2);
    saved.save_state(files.path());
    saved.barrier();
    LanguageModel again(cut, config, 2), without(whole, config, 3);
    again.load_state(files.path());
    without.load_state(files.path());
    for (std::size_t i = 0; i < saved.parameters().size(); ++i) {
        const Parameter &a = *saved.parameters()[i], &b = *without.parameters()[i];
        for (Tensor Parameter::*part :
             {&Parameter::master, &Parameter::exp_avg, &Parameter::exp_avg_sq}) {
            EXPECT_TRUE(same_bits(a.*part, b.*part)) << a.name;
        }
    }
    train_steps(saved, 2, 2);
    train_steps(again, 2, 2);
    for (std::size_t i = 0; i < saved.parameters().size(); ++i) {
        EXPECT_TRUE(same_bits(saved.parameters()[i]->master, again.parameters()[i]->master))
            << saved.parameters()[i]->name;
    }
}

class SequenceRegionTest : public ::testing::Test {
  protected:
    static constexpr std::int64_t kBatch = 3, kPositions = 8, kRows = kBatch * kPositions;
    // This rank's rows of a tensor of all.
    Tensor own(const Tensor& all) const {
        const std::int64_t rows = kRows / grid_.tp_size(), begin = rows * grid_.tp_rank();
        return all.view({1, kRows, all.size(2)}).slice(1, begin, begin + rows).clone();
    }

    const ProcessGrid grid_ = grid_of({world().size(), 1}, true);
    const SequenceRegion region_ = sequence_region(grid_, kBatch, kPositions);
};

TEST_F(SequenceRegionTest, IsCutWhereRowsCanBeShared) {
    EXPECT_TRUE(region_.is_cut());
    EXPECT_FALSE(sequence_region(grid_, 1, 9).is_cut());
    EXPECT_FALSE(sequence_region(grid_, 0, 8).is_cut());
    const ProcessGrid whole = grid_of({world().size(), 1}, false), data = grid_of({1, 0}, true);
    for (const ProcessGrid* grid : {&whole, &data}) {
        EXPECT_FALSE(sequence_region(*grid, 1, 8).is_cut());
        EXPECT_EQ(gradient_sum_over_rows(*grid), GradientSum::kNone);
    }
    EXPECT_EQ(gradient_sum_over_rows(grid_), GradientSum::kTensorParallel);
}

TEST_F(SequenceRegionTest, GathersRowsInOrderAndScattersTheirSum) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
        const Tensor all = gaussian({kBatch, kPositions, 5}, type, 1);
        EXPECT_TRUE(same_bits(gather_rows(grid_, region_, own(all)), all));
        EXPECT_EQ(gather_rows(grid_, {}, all).raw(), all.raw());
        // What has been gathered is not gathered again.
        EXPECT_EQ(gather_rows(grid_, region_, all).raw(), all.raw());
        const auto mine = [&] {
            return gaussian({kBatch, kPositions, 5}, type,
                            2 + static_cast<std::uint64_t>(world().rank()));
        };
        EXPECT_TRUE(same_bits(sum_rows(grid_, region_, mine()), own(sum_rows(grid_, {}, mine()))));
    }
    EXPECT_THROW(
        gather_rows(grid_, region_, Tensor::zeros({kBatch, kPositions - 1, 5}, DType::kFloat32)),
        Error);
    EXPECT_THROW(sum_rows(grid_, region_, Tensor::zeros({1, kRows / 2, 5}, DType::kFloat32)),
                 Error);
}

TEST_F(SequenceRegionTest, LinearLayersOnPartsOfTheRowsAreThoseOnAllRows) {
    constexpr std::int64_t kWidth = 24, kInner = 32;
    const int rank = grid_.tp_rank(), size = grid_.tp_size();
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
        const std::vector<ColumnParallelLinear::Part> parts = {
            {"in", kInner, Sharding::sharded(0, kInner, 1, rank, size), GradientSum::kNone}};
        ColumnParallelLinear in(grid_, parts, kWidth, type, true),
            in_all(grid_, parts, kWidth, type, true);
        const Sharding columns = Sharding::sharded(1, kInner, 1, rank, size);
        RowParallelLinear out(grid_, "out", kInner, kWidth, columns, type, true),
            out_all(grid_, "out", kInner, kWidth, columns, type, true);
        const ParameterBuckets memory[] = {testing::allocate(in), testing::allocate(in_all),
                                           testing::allocate(out), testing::allocate(out_all)};
        for (ColumnParallelLinear* layer : {&in, &in_all}) {
            init_normal(layer->part(0), 1.0, 7);
            init_normal(layer->bias(0), 1.0, 7);
        }
        for (RowParallelLinear* layer : {&out, &out_all}) {
            init_normal(layer->weight(), 1.0, 7);
            init_normal(layer->bias(), 1.0, 7);
        }
        const Tensor x = gaussian({kBatch, kPositions, kWidth}, type, 1);
        const Tensor hidden = in_all.forward(x);
        EXPECT_TRUE(same_bits(in.forward(own(x), region_), hidden));
        const Tensor y = out_all.forward(hidden);
        EXPECT_TRUE(same_bits(out.forward(hidden, region_), own(y)));

        const Tensor dy = gaussian({kBatch, kPositions, kWidth}, type, 2);
        const Tensor dhidden = out_all.backward(dy, hidden);
        EXPECT_TRUE(same_bits(out.backward(own(dy), hidden, region_), dhidden));
        EXPECT_TRUE(same_bits(out.weight().grad, out_all.weight().grad));
        EXPECT_EQ(out.bias().gradient_sum, GradientSum::kTensorParallel);
        grid_.tensor().all_reduce(out.bias().grad, ReduceOp::kSum);
        EXPECT_TRUE(testing::near(out.bias().grad, out_all.bias().grad, 1e-5, 1e-5));
        const Tensor dx = in_all.backward(dhidden, x);
        EXPECT_TRUE(same_bits(in.backward(dhidden, own(x), region_), own(dx)));
        EXPECT_TRUE(same_bits(in.part(0).grad, in_all.part(0).grad));
        EXPECT_TRUE(same_bits(in.bias(0).grad, in_all.bias(0).grad));
        // The same where all rows have been gathered: each still counts on one rank.
        out.bias().grad.zero();
        EXPECT_TRUE(same_bits(out.backward(dy, hidden, region_), dhidden));
        grid_.tensor().all_reduce(out.bias().grad, ReduceOp::kSum);
        EXPECT_TRUE(testing::near(out.bias().grad, out_all.bias().grad, 1e-5, 1e-5));
        EXPECT_TRUE(same_bits(in.forward(x, region_), hidden));
        EXPECT_TRUE(same_bits(in.backward(dhidden, x, region_), own(dx)));
    }
}

}  // namespace
}  // namespace evenkeel
