#include "model/memory_plan.h"

#include <gtest/gtest.h>

#include <functional>

#include "framework/large_blocks.h"
#include "model/method.h"
#include "tests/support/devices.h"
#include "tests/support/measured_peak.h"

namespace evenkeel {
namespace {

using testing::planned_model;

struct Case {
    const char* name;
    std::function<void(ModelConfig&, StepShape&)> change;
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

const Case kCases[] = {
    {"SwiGlu", [](ModelConfig&, StepShape&) {}},
    {"Gelu", [](ModelConfig& c, StepShape&) { c.activation = Activation::kGelu; }},
    {"WideFeedForward", [](ModelConfig& c, StepShape&) { c.feed_forward_width = 640; }},
    {"Tied", [](ModelConfig& c, StepShape&) { c.tied_embeddings = true; }},
    {"LargeVocabulary", [](ModelConfig& c, StepShape&) { c.vocab_size = 1024; }},
    {"NoQkNorm",
     [](ModelConfig& c, StepShape&) { c.attention.qk_norm.kind = QkNormConfig::Kind::kNone; }},
    {"SharedGains",
     [](ModelConfig& c, StepShape&) {
         c.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
     }},
    {"FullWidthNorm",
     [](ModelConfig& c, StepShape&) {
         c.attention.qk_norm.scope = QkNormConfig::Scope::kFullWidth;
     }},
    {"FactorPerHead",
     [](ModelConfig& c, StepShape&) {
         c.attention.qk_norm.gain = QkNormConfig::Gain::kPerHeadScalar;
     }},
    {"Sinks",
     [](ModelConfig& c, StepShape&) { c.attention.sink = AttentionConfig::Sink::kLearned; }},
    {"Biases",
     [](ModelConfig& c, StepShape&) {
         c.attention.qkv_bias = c.attention.output_bias = c.feed_forward_bias = true;
     }},
    {"MultiHead", [](ModelConfig& c, StepShape&) { c.attention.num_kv_heads = 4; }},
    {"NoTelemetry", [](ModelConfig& c, StepShape&) { c.telemetry = false; }},
    {"Fp32", [](ModelConfig& c, StepShape&) { c.type = ComputeType::kFp32; }},
    {"ThreeSequences", [](ModelConfig&, StepShape& s) { s.micro_batch_size = 3; }},
    {"ShortSequences",
     [](ModelConfig&, StepShape& s) {
         s.micro_batch_size = 8;
         s.seq_len = 32;
     }},
    {"PackedDocuments",
     [](ModelConfig&, StepShape& s) {
         s.micro_batch_size = 3;
         s.packed = true;
     }},
    {"FourMicroBatches", [](ModelConfig&, StepShape& s) { s.micro_batches = 4; }},
    {"SigmaReparam", [](ModelConfig& c, StepShape&) { c.sigma_reparam = true; }},
    {"SigmaReparamInFp32",
     [](ModelConfig& c, StepShape&) {
         c.sigma_reparam = true;
         c.type = ComputeType::kFp32;
     }},
    {"Ngpt", [](ModelConfig& c, StepShape&) { apply_method("ngpt", c); }},
    {"NgptInFp32",
     [](ModelConfig& c, StepShape&) {
         apply_method("ngpt", c);
         c.type = ComputeType::kFp32;
     }},
    {"HeldGains",
     [](ModelConfig& c, StepShape&) {
         c.attention.qk_norm.gain_pull = 0.1;
         c.attention.qk_norm.anneal_steps = 10;
     }},
    {"PostNorm", [](ModelConfig& c, StepShape&) { c.architecture = Architecture::kPostNorm; }},
    {"SandwichNorm",
     [](ModelConfig& c, StepShape&) { c.architecture = Architecture::kSandwichNorm; }},
    {"SandwichNormOfWideLayers",
     [](ModelConfig& c, StepShape&) {
         c.architecture = Architecture::kSandwichNorm;
         c.feed_forward_width = 640;
     }},
    {"Parallel", [](ModelConfig& c, StepShape&) { c.architecture = Architecture::kParallel; }},
    {"LayerNormWithBias",
     [](ModelConfig& c, StepShape&) {
         c.norm.kind = NormConfig::Kind::kLayerNorm;
         c.norm.bias = true;
     }},
    {"ScalesAndGeGlu",
     [](ModelConfig& c, StepShape&) {
         c.activation = Activation::kGeGlu;
         c.embedding_scale = 8.0;
         c.logit_scale = 0.5;
     }},
    {"NormInOneLayerOfThree",
     [](ModelConfig& c, StepShape&) {
         c.num_layers = 3;
         c.qk_norm_layers = "1";
         c.attention.window = 32;
         c.global_interval = 3;
     }},
    {"OneLayer", [](ModelConfig& c, StepShape&) { c.num_layers = 1; }},
};

class MemoryPlanTest : public ::testing::TestWithParam<Case> {};

TEST_P(MemoryPlanTest, PredictsThePeakOfTrainingWithinFivePercent) {
    const testing::SoloGrid solo;
    ModelConfig config = planned_model();
    StepShape shape;
    GetParam().change(config, shape);
    const MemoryPlan plan = plan_memory(config, shape);
    const auto predicted = static_cast<double>(plan.peak());
    const auto measured = static_cast<double>(testing::measured_peak(solo.grid, config, shape));
    EXPECT_NEAR(predicted / measured, 1.0, 0.05)
        << "predicted " << predicted << " bytes, measured " << measured << "\n"
        << to_text(plan);
}

INSTANTIATE_TEST_SUITE_P(, MemoryPlanTest, ::testing::ValuesIn(kCases), [](const auto& test) {
    return test.param.name;
});

// Of every kind of block, with what backward makes again, and how the peak grows with layers.
class MemoryPlanOfRecomputeTest
    : public ::testing::TestWithParam<std::tuple<Architecture, Recompute>> {};

TEST_P(MemoryPlanOfRecomputeTest, PredictsThePeakAndWhatALayerAdds) {
    const testing::SoloGrid solo;
    ModelConfig config = planned_model();
    const auto [architecture, recompute] = GetParam();
    if (architecture == Architecture::kNgpt) apply_method("ngpt", config);
    config.architecture = architecture;
    config.recompute = recompute;
    const StepShape shape{.micro_batch_size = 3};
    std::vector<double> predicted, measured;
    for (const std::int64_t layers : {1, 2, 5}) {
        config.num_layers = layers;
        const MemoryPlan plan = plan_memory(config, shape);
        predicted.push_back(static_cast<double>(plan.peak()));
        measured.push_back(static_cast<double>(testing::measured_peak(solo.grid, config, shape)));
        EXPECT_NEAR(predicted.back() / measured.back(), 1.0, 0.05)
            << layers << " layers: predicted " << predicted.back() << " bytes, measured "
            << measured.back() << "\n"
            << to_text(plan);
    }
    EXPECT_NEAR((predicted[2] - predicted[1]) / (measured[2] - measured[1]), 1.0, 0.02)
        << "three more layers: predicted " << predicted[2] - predicted[1] << ", measured "
        << measured[2] - measured[1];
}

INSTANTIATE_TEST_SUITE_P(,
                         MemoryPlanOfRecomputeTest,
                         ::testing::Combine(::testing::Values(Architecture::kPreNorm,
                                                              Architecture::kPostNorm,
                                                              Architecture::kSandwichNorm,
                                                              Architecture::kParallel,
                                                              Architecture::kNgpt),
                                            ::testing::Values(Recompute::kNone,
                                                              Recompute::kElementwise,
                                                              Recompute::kAttention,
                                                              Recompute::kFull)));

class MemoryPlanOnGpuTest : public ::testing::TestWithParam<std::tuple<Device, ComputeType>> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MemoryPlanOnGpuTest);

TEST_P(MemoryPlanOnGpuTest, PredictsThePeakOfTrainingWithinFivePercent) {
    const auto world = make_single_communicator();
    const auto [device, type] = GetParam();
    const ProcessGrid grid(*world, {}, device);
    for (const Activation activation : {Activation::kSwiGlu, Activation::kGelu}) {
        ModelConfig config = testing::planned_gpu_model(activation);
        config.type = type;
        if (activation == Activation::kGelu) {
            config.attention.sink = AttentionConfig::Sink::kLearned;
            config.attention.qkv_bias = config.feed_forward_bias = true;
            config.recompute = Recompute::kFull;
        }
        const StepShape shape{.device = device,
                              .micro_batch_size = 2,
                              .seq_len = 64,
                              .packed = activation == Activation::kSwiGlu};
        const MemoryPlan plan = plan_memory(config, shape);
        const auto predicted = static_cast<double>(plan.peak());
        const auto measured = static_cast<double>(testing::measured_peak(grid, config, shape));
        EXPECT_NEAR(predicted / measured, 1.0, 0.05)
            << "predicted " << predicted << " bytes, measured " << measured << "\n"
            << to_text(plan);
    }
}

INSTANTIATE_TEST_SUITE_P(,
                         MemoryPlanOnGpuTest,
                         ::testing::Combine(::testing::ValuesIn(testing::test_gpus()),
                                            ::testing::Values(ComputeType::kBf16,
                                                              ComputeType::kFp32)),
                         [](const auto& test) {
                             const bool fp32 = std::get<1>(test.param) == ComputeType::kFp32;
                             return std::string(name_of(std::get<0>(test.param))) +
                                    (fp32 ? "_fp32" : "_bf16");
                         });

// Tensors from 1 MiB on lie in blocks of their own (large_blocks.h): all that a step needs are there after the first.
TEST(MemoryOfSteps, NothingIsAskedOfTheSystemAfterTheFirst) {
    const testing::SoloGrid solo;
    for (const Recompute recompute : kAllRecompute) {
        ModelConfig config = planned_model();
        config.num_layers = 4;
        config.width = 256;
        config.feed_forward_width = 704;
        config.recompute = recompute;
        config.type = ComputeType::kFp32;
        LanguageModel model(solo.grid, config, 1);
        const std::vector<Batch> batches = {testing::random_batch(8, 256, config.vocab_size, 1)};
        const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
        std::vector<std::uint64_t> mappings;
        for (int step = 1; step <= 4; ++step) {
            compute_gradients(model, batches, numbers);
            adamw_step(model.buckets(), {}, 1e-3, 1.0, numbers, step);
            model.finish_update();
            mappings.push_back(large_blocks().count().mappings);
        }
        EXPECT_GT(mappings[0], 20u) << "a test of large blocks";
        EXPECT_EQ(mappings[3], mappings[0]) << name_of(recompute);
    }
}

TEST(MemoryPlan, CountsEveryParameterOnce) {
    const testing::SoloGrid solo;
    ModelConfig config = planned_model();
    config.attention.qkv_bias = config.attention.output_bias = config.feed_forward_bias = true;
    const MemoryPlan plan = plan_memory(config, {});
    const auto elements = static_cast<std::size_t>(parameter_count(config));
    EXPECT_EQ(plan.masters, 4 * elements);
    EXPECT_EQ(plan.moments, 8 * elements);
    std::size_t values = 0, gradients = 0;
    const LanguageModel model(solo.grid, config, 1);
    for (const ParameterBucket& bucket : const_cast<LanguageModel&>(model).buckets().list()) {
        if (bucket.value.raw() != bucket.master.raw()) values += bucket.value.bytes();
        gradients += bucket.grad.bytes();
    }
    EXPECT_EQ(plan.values, values);
    EXPECT_EQ(plan.gradients, gradients);
}

TEST(MemoryPlan, GrowsWithTheBatchAndShrinksWithTensorParallelRanks) {
    const ModelConfig config = planned_model();
    const auto total = [&](std::int64_t micro_batch, std::int64_t ranks) {
        StepShape shape{.device = Device::kCuda, .tensor_parallel = ranks};
        shape.micro_batch_size = micro_batch;
        return plan_memory(config, shape).total();
    };
    EXPECT_LT(total(1, 1), total(2, 1));
    EXPECT_LT(total(2, 2), total(2, 1));
    EXPECT_LT(total(2, 4), total(2, 2));
}

TEST(MemoryPlan, WritesALineForEveryPart) {
    const std::string text = to_text(plan_memory(planned_model(), {.device = Device::kCuda}));
    for (const char* part :
         {"parameters", "tables", "activations", "loss", "backward", "workspace", "in all"}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
    }
    EXPECT_EQ(text.find("communication"), std::string::npos) << text;
    EXPECT_EQ(text.find("first step"), std::string::npos) << text;
    const MemoryPlan plan = plan_memory(planned_model(), {.async_checkpoints = true});
    for (const auto& [part, bytes] : {std::pair{"  first step ", plan.peak()},
                                      {"  checkpoint ", plan.snapshot},
                                      {"  in all ", plan.total()}}) {
        const std::string shown = to_text(plan);
        const std::size_t at = shown.find(part);
        ASSERT_NE(at, std::string::npos) << part << " is missing in\n" << shown;
        const std::string line = shown.substr(at, shown.find('\n', at) - at);
        EXPECT_NE(line.find(" " + bytes_text(bytes)), std::string::npos) << line;
    }
}

TEST(MemoryPlan, WritesBytesWithThreeDigits) {
    EXPECT_EQ(bytes_text(512), "512 B");
    EXPECT_EQ(bytes_text(1536), "1.50 KiB");
    EXPECT_EQ(bytes_text(std::size_t{25} << 19), "12.5 MiB");
    EXPECT_EQ(bytes_text(std::size_t{141} << 30), "141 GiB");
}

}  // namespace
}  // namespace evenkeel
