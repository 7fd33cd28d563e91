// Settings that others test one by one, together: training over ranks against one process that has none of them. What
// is compared, for each: loss and gradient norm of each step, the first step's gradients (a sum that counts twice
// changes no update of AdamW, but these), and the parameters after the last.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "attention/retrofit/gain_fit.h"
#include "framework/stream.h"
#include "model/method.h"
#include "model/retrofit/retrofit.h"
#include "tests/support/devices.h"
#include "tests/support/sharded_models.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::distance;
using testing::GridShape;
using testing::random_batch;
using testing::same_bits;
using testing::SoloGrid;
using testing::world;

// What a run has beside its model. Of the batches: documents, and targets left out.
struct Setting {
    const char* name;
    bool sequence_parallel = false;
    std::int64_t zero_stage = 0;
    Recompute recompute = Recompute::kNone;
    std::int64_t vocab_size = 32, num_kv_heads = 2;
    bool packed = false, masked = false;
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

// A vocabulary of 31 is uneven at every size, and one key head is shared by all ranks.
const Setting kSettings[] = {
    {.name = "RecomputedAttentionAndSequenceParallel",
     .sequence_parallel = true,
     .recompute = Recompute::kAttention},
    {.name = "FullRecomputeAndSequenceParallel",
     .sequence_parallel = true,
     .recompute = Recompute::kFull},
    {.name = "SequenceParallelAndDocuments", .sequence_parallel = true, .packed = true},
    {.name = "SequenceParallelAndUnevenVocabulary", .sequence_parallel = true, .vocab_size = 31},
    {.name = "SequenceParallelAndMasks", .sequence_parallel = true, .masked = true},
    {.name = "ZeroAndSequenceParallel", .sequence_parallel = true, .zero_stage = 1},
    {.name = "ZeroAndUnevenVocabulary", .zero_stage = 1, .vocab_size = 31},
    {.name = "ZeroAndMasks", .zero_stage = 1, .masked = true},
    {.name = "ZeroAndDocuments", .zero_stage = 1, .packed = true},
    {.name = "UnevenVocabularyAndSharedKeyHead", .vocab_size = 31, .num_kv_heads = 1},
    {.name = "FullRecomputeAndDocuments", .recompute = Recompute::kFull, .packed = true},
    {.name = "AllOfThem",
     .sequence_parallel = true,
     .zero_stage = 1,
     .recompute = Recompute::kFull,
     .vocab_size = 31,
     .num_kv_heads = 1,
     .packed = true,
     .masked = true},
};

struct Kind {
    const char* name;
    void (*apply)(ModelConfig&);
};
const Kind kKinds[] = {
    {"pre norm with biases",
     [](ModelConfig& c) {
         c.attention.qkv_bias = c.attention.output_bias = c.feed_forward_bias = true;
     }},
    {"post norm, gains of all heads, GELU",
     [](ModelConfig& c) {
         c.architecture = Architecture::kPostNorm;
         c.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
         c.activation = Activation::kGelu;
     }},
    {"sandwich norm, tied, learned sinks",
     [](ModelConfig& c) {
         c.architecture = Architecture::kSandwichNorm;
         c.tied_embeddings = true;
         c.attention.sink = AttentionConfig::Sink::kLearned;
     }},
    {"parallel, LayerNorm with bias, norm of the full width",
     [](ModelConfig& c) {
         c.architecture = Architecture::kParallel;
         c.norm.kind = NormConfig::Kind::kLayerNorm;
         c.norm.bias = true;
         c.attention.output_bias = c.feed_forward_bias = true;
         c.attention.qk_norm.scope = QkNormConfig::Scope::kFullWidth;
     }},
    {"nGPT", [](ModelConfig& c) { apply_method("ngpt", c); }},
    {"sigma reparam", [](ModelConfig& c) { apply_method("sigma_reparam", c); }},
    {"gains that come in and are held",
     [](ModelConfig& c) {
         c.attention.qk_norm.anneal_steps = 4;
         c.attention.qk_norm.gain_bound = 6.0;
         c.attention.qk_norm.gain_pull = 0.1;
     }},
};

ModelConfig model_of(const Setting& setting, const Kind& kind) {
    ModelConfig config = testing::tiny_model();
    config.attention.num_heads = 8;
    config.attention.num_kv_heads = setting.num_kv_heads;
    config.vocab_size = setting.vocab_size;
    kind.apply(config);
    return config;
}

// A step's micro-batches, of all data-parallel ranks. With masks the rows have targets of their own number, and the
// first ranks none at all in the second.
constexpr std::int64_t kRows = 4, kLength = 10;
constexpr int kSteps = 2;
std::vector<Batch> batches_of(const Setting& setting, int step) {
    std::vector<Batch> batches;
    for (int i = 0; i < 2; ++i) {
        const auto seed = static_cast<std::uint64_t>(2 * step + i);
        Batch batch = random_batch(kRows, kLength, setting.vocab_size, seed);
        if (setting.packed) testing::pack_documents(batch, seed);
        for (std::int64_t at = 0; setting.masked && at < kRows * kLength; ++at) {
            const std::int64_t row = at / kLength;
            if (at % kLength > row || (i == 1 && row < kRows / 2)) {
                batch.targets.data<std::int32_t>()[at] = Batch::kNoTarget;
            }
        }
        batches.push_back(std::move(batch));
    }
    return batches;
}

void vary_gains(LanguageModel& model) {
    if (model.config().architecture != Architecture::kNgpt) testing::randomize_gains(model);
}

struct Outcome {
    std::vector<double> losses, norms;
    std::vector<Tensor> gradients;  // of the first step
};

Outcome train(LanguageModel& model, const Setting& setting) {
    const Device device = model.buckets().device();
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, device);
    Outcome run;
    for (int step = 0; step < kSteps; ++step) {
        std::vector<Batch> batches;
        for (const Batch& batch : batches_of(setting, step)) {
            batches.push_back(testing::part_of(batch, model));
        }
        compute_gradients(model, batches, numbers);
        for (std::size_t i = 0; step == 0 && i < model.parameters().size(); ++i) {
            run.gradients.push_back(model.parameters()[i]->grad.to(Device::kCpu).clone());
        }
        adamw_step(model.buckets(), {}, 1e-2, 1.0, numbers, step + 1);
        model.finish_update();
        const Tensor host = numbers.to(Device::kCpu);
        run.losses.push_back(host.data<double>()[kLossIndex]);
        run.norms.push_back(std::sqrt(host.data<double>()[kSquaredNormIndex]));
    }
    return run;
}

// What this rank holds of a whole tensor, as one row.
Tensor local_part(const Parameter& parameter, const Tensor& whole) {
    const Sharding& sharding = parameter.sharding;
    const Tensor own = sharding.kind == Sharding::Kind::kReplicated
                           ? whole
                           : whole.slice(sharding.dim, sharding.begin, sharding.end);
    return own.contiguous().view({own.numel()});
}

// |got - want| over |whole|.
double error_of(const Tensor& got, const Tensor& want, const Tensor& whole) {
    const auto a = testing::to_doubles(got), b = testing::to_doubles(want);
    double difference = 0.0, size = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]);
    for (const double x : testing::to_doubles(whole)) size += x * x;
    return difference == 0.0 ? 0.0 : std::sqrt(difference / size);
}

// A run over ranks and the same in one process.
void expect_same_run(LanguageModel& got_model,
                     const Outcome& got,
                     LanguageModel& want_model,
                     const Outcome& want) {
    for (std::size_t step = 0; step < want.losses.size(); ++step) {
        // Updates make rounding errors larger.
        const double tolerance = step == 0 ? 1.0 : 20.0;
        EXPECT_NEAR(got.losses[step], want.losses[step], 1e-6 * tolerance * want.losses[step])
            << "loss of step " << step;
        EXPECT_NEAR(got.norms[step], want.norms[step], 1e-5 * tolerance * want.norms[step])
            << "gradient norm of step " << step;
    }
    ASSERT_EQ(got.gradients.size(), want.gradients.size());
    for (std::size_t i = 0; i < want.gradients.size(); ++i) {
        const Parameter& parameter = *got_model.parameters()[i];
        const FlatRange held = parameter.held();  // the rest holds anything
        const Tensor& gradient = got.gradients[i];
        const Tensor whole = local_part(parameter, want.gradients[i]);
        EXPECT_LT(error_of(gradient.view({gradient.numel()}).slice(0, held.begin, held.end),
                           whole.slice(0, held.begin, held.end), want.gradients[i]),
                  parameter.name.ends_with("_gamma") ? 2e-4 : 1e-5)  // most of such a sum cancels
            << parameter.name << " (gradient)";
        const Tensor& value = want_model.parameters()[i]->value;
        EXPECT_LT(error_of(parameter.value.view({parameter.value.numel()}),
                           local_part(parameter, value), value),
                  5e-4)
            << parameter.name << " (value)";
    }
    EXPECT_EQ(got_model.replica_drift(), "");
}

class Combinations : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(, Combinations, ::testing::ValuesIn(kSettings), [](const auto& info) {
    return info.param.name;
});

TEST_P(Combinations, TrainAsOneProcessWithoutThem) {
    const Setting& setting = GetParam();
    const SoloGrid solo;
    for (const Kind& kind : kKinds) {
        ModelConfig config = model_of(setting, kind);
        LanguageModel one(solo.grid, config, 1);
        vary_gains(one);
        const Outcome want = train(one, setting);
        config.recompute = setting.recompute;
        for (const GridShape& shape : testing::grid_shapes()) {
            const ProcessGrid grid(world(), {.tensor_parallel = shape.tensor,
                                             .data_parallel = shape.data,
                                             .sequence_parallel = setting.sequence_parallel,
                                             .zero_stage = setting.zero_stage});
            SCOPED_TRACE(concat(kind.name, ", ", testing::name_of(grid)));
            LanguageModel many(grid, config, 1);
            vary_gains(many);
            ASSERT_EQ(many.buckets().is_cut(), setting.zero_stage == 1 && shape.data > 1);
            const Outcome got = train(many, setting);
            expect_same_run(many, got, one, want);
        }
    }
}

// On a GPU against the same ranks without: what is made of rows and of parts has the same bits there too, where sums
// are formed in rank order.
class CombinationsOnGpu : public ::testing::TestWithParam<Device> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CombinationsOnGpu);
INSTANTIATE_TEST_SUITE_P(,
                         CombinationsOnGpu,
                         ::testing::ValuesIn(testing::test_gpus()),
                         testing::device_name);

struct GpuOutcome {
    Outcome run;
    std::vector<Tensor> values;
    std::vector<GradientSum> sums;
    std::vector<FlatRange> held;
};

GpuOutcome train_on(Device device, const GridShape& shape, const Setting& batches, bool with) {
    const ProcessGrid grid(world(),
                           {.tensor_parallel = shape.tensor,
                            .data_parallel = shape.data,
                            .sequence_parallel = with,
                            .communication = Communication::kStaged,
                            .zero_stage = with ? 1 : 0},
                           device);
    const Stream stream;  // of the device that the grid has chosen
    const StreamScope scope(stream);
    ModelConfig config = testing::small_gpu_model();
    config.num_layers = 1;
    config.attention.num_kv_heads = 1;
    config.vocab_size = batches.vocab_size;
    config.architecture = Architecture::kParallel;
    config.feed_forward_bias = config.attention.output_bias = true;
    config.recompute = with ? Recompute::kFull : Recompute::kNone;
    LanguageModel model(grid, config, 1);
    GpuOutcome result{train(model, batches), {}, {}, {}};
    EXPECT_EQ(model.replica_drift(), "");
    for (const Parameter* parameter : model.parameters()) {
        result.values.push_back(parameter->value.to(Device::kCpu));
        result.sums.push_back(parameter->gradient_sum);
        result.held.push_back(parameter->held());
    }
    return result;
}

TEST_P(CombinationsOnGpu, HaveTheBitsOfTrainingWithoutThemBesideSumsOverRows) {
    Setting batches = kSettings[std::size(kSettings) - 1];
    for (const GridShape& shape : testing::grid_shapes()) {
        SCOPED_TRACE(concat("tensor parallel ", shape.tensor));
        const GpuOutcome got = train_on(GetParam(), shape, batches, true);
        const GpuOutcome want = train_on(GetParam(), shape, batches, false);
        EXPECT_EQ(got.run.losses[0], want.run.losses[0]);
        EXPECT_NEAR(got.run.norms[0] / want.run.norms[0], 1.0, 2e-6);
        for (std::size_t i = 0; i < want.sums.size(); ++i) {
            const auto held = [&](const GpuOutcome& run) {
                const Tensor& gradient = run.run.gradients[i];
                return gradient.view({gradient.numel()})
                    .slice(0, got.held[i].begin, got.held[i].end);
            };
            if (got.sums[i] == want.sums[i]) {
                EXPECT_TRUE(same_bits(held(got), held(want))) << "gradient " << i;
            } else {
                EXPECT_LT(distance(held(got), held(want)), 2e-6) << "gradient " << i;
            }
            // Rows are cut over tensor-parallel ranks.
            if (shape.tensor > 1) continue;
            EXPECT_TRUE(same_bits(got.values[i], want.values[i])) << "value " << i;
        }
        if (shape.tensor == 1) EXPECT_EQ(got.run.losses, want.run.losses);
    }
}

// Gains are made from what the heads of a model do that was trained in parts, and the model with them goes on so.
TEST(RetrofitOfSequenceParallel, IsThatOfOneProcessAndTrainsOn) {
    const Setting setting{.name = "", .sequence_parallel = true};
    ModelConfig plain = model_of(setting, {"", [](ModelConfig&) {}});
    plain.attention.qk_norm.kind = QkNormConfig::Kind::kNone;
    const ModelConfig normed = retrofitted_config(plain, {.anneal_steps = 2});
    const SoloGrid solo;
    for (const GridShape& shape : testing::grid_shapes()) {
        if (shape.tensor == 1) continue;
        const ProcessGrid grid(world(), {.tensor_parallel = shape.tensor,
                                         .data_parallel = shape.data,
                                         .sequence_parallel = true});
        SCOPED_TRACE(testing::name_of(grid));
        const testing::SharedDirectory files;
        LanguageModel trained(grid, plain, 1);
        train(trained, setting);
        trained.save_state(files.path());
        LanguageModel one(solo.grid, plain, 2);
        one.load_state(files.path());
        // Numbers of tokens that the ranks can share, and not.
        const Batch batches[] = {random_batch(4, kLength, 32, 7),
                                 random_batch(3, kLength - 1, 32, 8)};
        for (const Batch& batch : batches) {
            const ModelCalibration got = calibrate(grid, trained, {&batch, 1});
            const ModelCalibration want = calibrate(solo.grid, one, {&batch, 1});
            EXPECT_NEAR(got.measured.loss, want.measured.loss, 1e-6 * want.measured.loss);
            for (const MetricTable HeadMeasurements::*table :
                 {&HeadMeasurements::max_logit, &HeadMeasurements::entropy}) {
                const auto &a = (got.measured.*table).values, &b = (want.measured.*table).values;
                ASSERT_EQ(a.size(), b.size());
                for (std::size_t i = 0; i < b.size(); ++i) {
                    EXPECT_NEAR(a[i], b[i], 1e-5 * std::abs(b[i]) + 1e-6) << i;
                }
            }
        }
        std::vector<LayerGains> gains, gains_of_one;
        const GainFitOptions options{.estimator = GainEstimator::kMatchedStd};
        for (const HeadCalibration& layer : calibrate(grid, trained, {batches, 1}).layers) {
            const GainFit fit = fit_gains(layer, options);
            gains.push_back({fit.q_gain, fit.k_gain});
        }
        for (const HeadCalibration& layer : calibrate(solo.grid, one, {batches, 1}).layers) {
            const GainFit fit = fit_gains(layer, options);
            gains_of_one.push_back({fit.q_gain, fit.k_gain});
        }
        LanguageModel with(grid, normed, 3), one_with(solo.grid, normed, 4);
        retrofit_weights(trained, with, gains);
        retrofit_weights(one, one_with, gains_of_one);
        for (std::size_t i = 0; i < with.parameters().size(); ++i) {
            const Parameter& parameter = *with.parameters()[i];
            const Tensor& want = one_with.parameters()[i]->value;
            EXPECT_LT(error_of(parameter.value.view({parameter.value.numel()}),
                               local_part(parameter, want), want),
                      1e-5)
                << parameter.name;
        }
        const Outcome got = train(with, setting), want = train(one_with, setting);
        expect_same_run(with, got, one_with, want);
    }
}

}  // namespace
}  // namespace evenkeel
