#include "model/language_model.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "framework/json.h"
#include "framework/storage/safetensors.h"
#include "model/method.h"
#include "tests/support/compare.h"
#include "tests/support/run_files.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::random_batch;
using testing::SoloGrid;
using testing::tiny_model;

struct Variant {
    const char* name;
    std::function<void(ModelConfig&)> change;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

const Variant kVariants[] = {
    {"Default", [](ModelConfig&) {}},
    {"SharedGains",
     [](ModelConfig& c) { c.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel; }},
    {"NoQkNorm", [](ModelConfig& c) { c.attention.qk_norm.kind = QkNormConfig::Kind::kNone; }},
    {"Gelu", [](ModelConfig& c) { c.activation = Activation::kGelu; }},
    {"Biases",
     [](ModelConfig& c) {
         c.attention.qkv_bias = c.attention.output_bias = c.feed_forward_bias = true;
     }},
    {"BiasesOfQueriesKeysAndValuesWithoutNorm",
     [](ModelConfig& c) {
         c.attention.qk_norm.kind = QkNormConfig::Kind::kNone;
         c.attention.qkv_bias = true;
     }},
    {"BiasesGelu",
     [](ModelConfig& c) {
         c.activation = Activation::kGelu;
         c.feed_forward_bias = true;
     }},
    {"Tied", [](ModelConfig& c) { c.tied_embeddings = true; }},
    {"MultiQueryWindow",
     [](ModelConfig& c) {
         c.attention.num_kv_heads = 1;
         c.attention.window = 4;
     }},
    {"LayerNorm", [](ModelConfig& c) { apply_method("layer_norm", c); }},
    {"OffsetAndUnitOfGains",
     [](ModelConfig& c) {
         apply_method("rms", c);
         c.attention.qk_norm.gain_offset = 0.25;
         c.attention.qk_norm.gain_unit = 1.25;
     }},
    {"FullWidth", [](ModelConfig& c) { apply_method("full_width_rms", c); }},
    {"Henry", [](ModelConfig& c) { apply_method("henry", c); }},
    {"HenryModule", [](ModelConfig& c) { apply_method("henry_module", c); }},
    {"Cosine", [](ModelConfig& c) { apply_method("cosine", c); }},
    {"NormGainOffset", [](ModelConfig& c) { c.norm.gain_offset = 1.0; }},
    {"StreamLayerNorm", [](ModelConfig& c) { c.norm.kind = NormConfig::Kind::kLayerNorm; }},
    {"StreamLayerNormBias",
     [](ModelConfig& c) {
         c.norm.kind = NormConfig::Kind::kLayerNorm;
         c.norm.bias = true;
         c.norm.gain_offset = 0.5;
     }},
    {"PostNorm",
     [](ModelConfig& c) {
         c.architecture = Architecture::kPostNorm;
         c.embedding_init_std = 1.0;  // what the layers return has the size of what they are given
     }},
    {"SandwichNorm",
     [](ModelConfig& c) {
         c.architecture = Architecture::kSandwichNorm;
         c.norm.gain_offset = 1.0;
     }},
    {"Parallel",
     [](ModelConfig& c) {
         c.architecture = Architecture::kParallel;
         c.norm.kind = NormConfig::Kind::kLayerNorm;
     }},
    {"GeGlu", [](ModelConfig& c) { c.activation = Activation::kGeGlu; }},
    {"Scales",
     [](ModelConfig& c) {
         c.embedding_scale = 3.0;
         c.logit_scale = 0.4;
     }},
    {"TiedScales",
     [](ModelConfig& c) {
         c.tied_embeddings = true;
         c.embedding_scale = 3.0;
         c.logit_scale = 0.4;
     }},
    {"LayersThatDiffer",
     [](ModelConfig& c) {
         c.num_layers = 3;
         c.attention.window = 3;
         c.global_interval = 2;
         c.local_rope_theta = 100.0;
         c.qk_norm_layers = "0,2";
     }},
    {"Softcap",
     [](ModelConfig& c) {
         apply_method("softcap", c);
         c.attention.softcap = 2.0;
     }},
    {"Sink", [](ModelConfig& c) { apply_method("sink", c); }},
    {"OffByOne", [](ModelConfig& c) { apply_method("off_by_one", c); }},
    {"SinkUnderACapOfNormalisedLogits",
     [](ModelConfig& c) {
         apply_method("rms", c);
         c.attention.softcap = 2.0;
         c.attention.sink = AttentionConfig::Sink::kLearned;
         c.attention.sink_init = 0.5;
     }},
};

class LanguageModelGradientTest : public ::testing::TestWithParam<Variant> {};

// Fourth-order central difference: its error is O(h^4), so a step large enough to stand out of fp32
// rounding remains accurate.
double derivative(const std::function<double(double)>& loss_at, double h) {
    return (8.0 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12.0 * h);
}

TEST_P(LanguageModelGradientTest, AgreesWithFiniteDifferences) {
    const SoloGrid solo;
    ModelConfig config = tiny_model();
    GetParam().change(config);
    LanguageModel model(solo.grid, config, 5);
    testing::randomize_gains(model);
    const Batch batch = random_batch(2, 9, config.vocab_size, 11);
    model.buckets().zero_gradients();
    testing::forward_backward(model, batch, 1.0);

    for (Parameter* parameter : model.parameters()) {
        float* value = parameter->value.data<float>();
        const float* grad = parameter->grad.data<float>();
        const auto count = static_cast<std::size_t>(parameter->value.numel());
        std::vector<std::size_t> order(count);
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return std::abs(grad[a]) > std::abs(grad[b]);
        });
        // The largest entry, one from the middle, the first and the last.
        for (std::size_t index : {order[0], order[count / 2], std::size_t{0}, count - 1}) {
            const float kept = value[index];
            const double slope = derivative(
                [&](double shift) {
                    value[index] = static_cast<float>(kept + shift);
                    const double loss = model.evaluate(batch);
                    value[index] = kept;
                    return loss;
                },
                0.02);
            EXPECT_NEAR(slope, grad[index], 2e-5 + 2e-3 * std::abs(grad[index]))
                << parameter->name << " at " << index;
        }
        // Along the whole gradient the slope is its norm: every entry counts at once.
        double norm = 0.0;
        for (std::size_t i = 0; i < count; ++i) norm += double{grad[i]} * grad[i];
        norm = std::sqrt(norm);
        const std::vector<float> start(value, value + count);
        const double slope = derivative(
            [&](double shift) {
                for (std::size_t i = 0; i < count; ++i) {
                    value[i] = static_cast<float>(start[i] + shift * grad[i] / norm);
                }
                const double loss = model.evaluate(batch);
                std::copy(start.begin(), start.end(), value);
                return loss;
            },
            0.02);
        EXPECT_NEAR(slope, norm, 2e-5 + 1e-3 * norm) << parameter->name << " along its gradient";
    }
}

INSTANTIATE_TEST_SUITE_P(Variants,
                         LanguageModelGradientTest,
                         ::testing::ValuesIn(kVariants),
                         [](const auto& param_info) { return param_info.param.name; });

std::vector<double> gradients(LanguageModel& model) {
    std::vector<double> all;
    for (const Parameter* parameter : model.parameters()) {
        const auto values = testing::to_doubles(parameter->grad);
        all.insert(all.end(), values.begin(), values.end());
    }
    return all;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double difference = 0.0, size = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return std::sqrt(difference / size);
}

TEST(LanguageModelTest, StartsNearUniformPrediction) {
    const SoloGrid solo;
    ModelConfig config = tiny_model();
    config.init_std = 0.02;
    LanguageModel model(solo.grid, config, 1);
    EXPECT_NEAR(model.evaluate(random_batch(2, 32, config.vocab_size, 1)), std::log(32.0), 0.05);
}

TEST(LanguageModelTest, NamesParametersByLayerAndRole) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, tiny_model(), 1);
    std::vector<std::string> names;
    for (const Parameter* parameter : model.parameters()) names.push_back(parameter->name);
    std::vector<std::string> want = {"embedding"};
    for (const std::string& layer : {std::string("layers.0."), std::string("layers.1.")}) {
        for (const char* role :
             {"attention_norm", "attention.wq", "attention.wk", "attention.wv", "attention.wo",
              "attention.q_gain", "attention.k_gain", "feed_forward_norm", "feed_forward.w_gate",
              "feed_forward.w_up", "feed_forward.w_down"}) {
            want.push_back(layer + role);
        }
    }
    want.insert(want.end(), {"final_norm", "output"});
    std::sort(names.begin(), names.end());
    std::sort(want.begin(), want.end());
    EXPECT_EQ(names, want);
}

TEST(LanguageModelTest, DecaysMatricesOnly) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, tiny_model(), 1);
    for (const Parameter* parameter : model.parameters()) {
        EXPECT_EQ(parameter->weight_decay, parameter->name.find("norm") == std::string::npos &&
                                               parameter->name.find("gain") == std::string::npos)
            << parameter->name;
    }
}

TEST(LanguageModelTest, MicroBatchesAddUpToTheWholeBatch) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, tiny_model(), 1);
    const Batch batch = random_batch(4, 16, 32, 2);
    model.buckets().zero_gradients();
    const double whole = testing::forward_backward(model, batch, 1.0);
    const std::vector<double> want = gradients(model);
    model.buckets().zero_gradients();
    double parts = 0.0;
    for (std::int64_t i = 0; i < 4; ++i) {
        parts +=
            0.25 *
            testing::forward_backward(
                model, {batch.tokens.slice(0, i, i + 1), batch.targets.slice(0, i, i + 1)}, 0.25);
    }
    EXPECT_NEAR(parts, whole, 1e-6 * whole);
    EXPECT_LT(distance(gradients(model), want), 1e-6);
}

TEST(LanguageModelTest, GivesTheSameBitsEveryTimeAndAtAnyNumberOfThreads) {
    const SoloGrid solo;
    const int threads_before = omp_get_max_threads();
    for (ComputeType type : {ComputeType::kFp32, ComputeType::kBf16}) {
        ModelConfig config = tiny_model();
        config.type = type;
        LanguageModel model(solo.grid, config, 1);
        const Batch batch = random_batch(2, 33, 32, 2);
        double first_loss = 0.0;
        std::vector<double> first;
        for (int threads : {1, 1, 2, 3}) {
            omp_set_num_threads(threads);
            model.buckets().zero_gradients();
            const double loss = testing::forward_backward(model, batch, 1.0);
            if (first.empty()) {
                first_loss = loss;
                first = gradients(model);
            }
            EXPECT_EQ(loss, first_loss) << threads << " threads";
            EXPECT_EQ(gradients(model), first) << threads << " threads";
        }
    }
    omp_set_num_threads(threads_before);
}

TEST(LanguageModelTest, Bfloat16StaysNearFp32) {
    const SoloGrid solo;
    ModelConfig config = tiny_model();
    LanguageModel exact(solo.grid, config, 1);
    config.type = ComputeType::kBf16;
    LanguageModel rounded(solo.grid, config, 1);
    const Batch batch = random_batch(4, 32, 32, 2);
    exact.buckets().zero_gradients();
    rounded.buckets().zero_gradients();
    const double want = testing::forward_backward(exact, batch, 1.0);
    EXPECT_NEAR(testing::forward_backward(rounded, batch, 1.0), want, 0.01 * want);
    EXPECT_LT(distance(gradients(rounded), gradients(exact)), 0.03);
}

TEST(LanguageModelTest, GathersHeadMetricsOverMicroBatches) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, tiny_model(), 1);
    EXPECT_TRUE(model.head_metrics().empty());
    const Batch a = random_batch(2, 16, 32, 2), b = random_batch(2, 16, 32, 3);
    testing::forward_backward(model, a, 1.0);
    const auto of_a = model.head_metrics();
    testing::forward_backward(model, b, 1.0);
    const auto of_b = model.head_metrics();
    testing::forward_backward(model, a, 1.0);
    testing::forward_backward(model, b, 1.0);
    model.evaluate(random_batch(2, 64, 32, 4));  // does not count
    const auto of_both = model.head_metrics();
    ASSERT_EQ(of_both.size(), of_a.size());
    EXPECT_EQ(of_both[0].name, "max_logit");
    EXPECT_EQ(of_both[1].name, "entropy");
    EXPECT_EQ(of_both[0].rows, 2);
    EXPECT_EQ(of_both[0].columns, 4);
    for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_EQ(of_both[0].values[i], std::max(of_a[0].values[i], of_b[0].values[i]));
        EXPECT_NEAR(of_both[1].values[i], 0.5 * (of_a[1].values[i] + of_b[1].values[i]), 1e-5);
        EXPECT_GT(of_both[1].values[i], 0.0);
        EXPECT_LT(of_both[1].values[i], std::log(16.0));
    }
    EXPECT_TRUE(model.head_metrics().empty());
}

TEST(LanguageModelTest, TelemetryChangesNothingElse) {
    const SoloGrid solo;
    ModelConfig config = tiny_model();
    LanguageModel watched(solo.grid, config, 1);
    config.telemetry = false;
    LanguageModel plain(solo.grid, config, 1);
    const Batch batch = random_batch(2, 33, 32, 2);
    EXPECT_EQ(testing::forward_backward(watched, batch, 1.0),
              testing::forward_backward(plain, batch, 1.0));
    EXPECT_EQ(gradients(watched), gradients(plain));
    EXPECT_TRUE(plain.head_metrics().empty());
    EXPECT_EQ(watched.description(), plain.description());
}

TEST(LanguageModelTest, MemoryGrowsLinearlyWithLength) {
    const SoloGrid solo;
    ModelConfig config = tiny_model();
    config.max_seq_len = 512;
    LanguageModel model(solo.grid, config, 1);
    const auto peak = [&](std::int64_t length) {
        const Batch batch = random_batch(1, length, 32, 2);
        testing::forward_backward(model, batch, 1.0);  // tables grow once
        Buffer::reset_peak(Device::kCpu);
        const auto before = static_cast<double>(Buffer::live_bytes(Device::kCpu));
        testing::forward_backward(model, batch, 1.0);
        return static_cast<double>(Buffer::peak_bytes(Device::kCpu)) - before;
    };
    const double short_peak = peak(128), middle_peak = peak(256), long_peak = peak(512);
    EXPECT_LT(long_peak - middle_peak, 2.1 * (middle_peak - short_peak));
}

TEST(LanguageModelTest, RejectsSequencesBeyondItsLength) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, tiny_model(), 1);
    EXPECT_THROW(model.evaluate(random_batch(1, 65, 32, 1)), Error);
}

TEST(LanguageModelTest, LoadsWhatItSaved) {
    const SoloGrid solo;
    const testing::TemporaryDirectory files;
    for (ComputeType type : {ComputeType::kFp32, ComputeType::kBf16}) {
        ModelConfig config = tiny_model();
        config.type = type;
        LanguageModel saved(solo.grid, config, 1), loaded(solo.grid, config, 2);
        for (Parameter* parameter : saved.parameters()) {
            init_normal(*parameter, 1.0, 9);
            parameter->exp_avg.fill(0.25f);
            parameter->exp_avg_sq.fill(0.75f);
        }
        saved.save_state(files.path());
        loaded.load_state(files.path());
        for (std::size_t i = 0; i < saved.parameters().size(); ++i) {
            const Parameter &got = *loaded.parameters()[i], &want = *saved.parameters()[i];
            EXPECT_TRUE(testing::same_bits(got.value, want.value)) << want.name;
            EXPECT_TRUE(testing::same_bits(got.master, want.master)) << want.name;
            EXPECT_TRUE(testing::same_bits(got.exp_avg, want.exp_avg)) << want.name;
            EXPECT_TRUE(testing::same_bits(got.exp_avg_sq, want.exp_avg_sq)) << want.name;
        }
    }
}

TEST(LanguageModelTest, RefusesTheWeightsOfAnotherModel) {
    const SoloGrid solo;
    const testing::TemporaryDirectory files;
    ModelConfig config = tiny_model();
    LanguageModel(solo.grid, config, 1).save_state(files.path());
    config.type = ComputeType::kBf16;
    LanguageModel(solo.grid, config, 1).load_weights(files.path());  // another storage type is fine
    config.num_layers = 3;
    config.attention.num_kv_heads = 4;
    LanguageModel other(solo.grid, config, 1);
    try {
        other.load_weights(files.path());
        FAIL() << "no error";
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_NE(message.find("num_layers: got 2, want 3"), std::string::npos) << message;
        EXPECT_NE(message.find("attention.num_kv_heads: got 2, want 4"), std::string::npos)
            << message;
    }
}

}  // namespace
TEST(LanguageModelTest, RestatesWhatEarlierVersionsAndOtherSettingsHaveSaidOfIt) {
    const SoloGrid solo;
    ModelConfig config = testing::tiny_model();
    const LanguageModel model(solo.grid, config, 1);
    const auto json = nlohmann::ordered_json::parse(model.description());
    EXPECT_EQ(model.restated(model.description()), model.description());
    // Before there was the setting.
    auto before = json;
    ASSERT_EQ(before.erase("recompute"), 1u);
    ASSERT_EQ(before["attention"]["qk_norm"].erase("gain_pull"), 1u);
    EXPECT_EQ(model.restated(before.dump()), model.description());
    // What does not describe the model.
    auto other = json;
    other["recompute"] = "full";
    other["telemetry"] = false;
    EXPECT_EQ(model.restated(other.dump()), model.description());
    // Another model stays one, and what a later version says of its own is not lost.
    other["num_layers"] = config.num_layers + 1;
    EXPECT_NE(model.restated(other.dump()), model.description());
    auto later = json;
    later["not_known_yet"] = 3;
    EXPECT_EQ(model.restated(later.dump()), later.dump());
}

TEST(LanguageModelTest, EmbeddingStartsWithItsOwnDeviationUnlessTied) {
    const auto deviation = [](const ModelConfig& config) {
        const SoloGrid solo;
        LanguageModel model(solo.grid, config, 1);
        double sum = 0.0;
        const Parameter& embedding = *model.parameters().front();
        EXPECT_EQ(embedding.name, "embedding");
        for (double x : ::evenkeel::testing::to_doubles(embedding.master)) sum += x * x;
        return std::sqrt(sum / static_cast<double>(embedding.master.numel()));
    };
    ModelConfig config = tiny_model();
    config.embedding_init_std = 1.0;
    EXPECT_NEAR(deviation(config), 1.0, 0.05);
    config.tied_embeddings = true;
    EXPECT_NEAR(deviation(config), config.init_std, 0.01);
}

}  // namespace evenkeel
