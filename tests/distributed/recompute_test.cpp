// Training that makes activations again in backward (ModelConfig::recompute) against training that keeps them: the
// same bits, of every kind of block and method, at every number of ranks.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>

#include "framework/optimizer/adamw.h"
#include "framework/stream.h"
#include "model/method.h"
#include "tests/support/devices.h"
#include "tests/support/sharded_models.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::random_batch;
using testing::same_bits;
using testing::SharedDirectory;
using testing::world;

struct Variant {
    const char* name;
    std::function<void(ModelConfig&)> apply;
};
const Variant kArchitectures[] = {
    {"pre norm", [](ModelConfig&) {}},
    {"post norm", [](ModelConfig& c) { c.architecture = Architecture::kPostNorm; }},
    {"sandwich norm", [](ModelConfig& c) { c.architecture = Architecture::kSandwichNorm; }},
    {"parallel", [](ModelConfig& c) { c.architecture = Architecture::kParallel; }},
    {"nGPT", [](ModelConfig& c) { apply_method("ngpt", c); }},
};
const Variant kMethods[] = {
    {"softcap and sinks",
     [](ModelConfig& c) {
         c.attention.softcap = 3.0;
         c.attention.sink = AttentionConfig::Sink::kLearned;
     }},
    {"off by one, biases, GELU, tied",
     [](ModelConfig& c) {
         c.attention.sink = AttentionConfig::Sink::kOffByOne;
         c.attention.qkv_bias = c.attention.output_bias = c.feed_forward_bias = true;
         c.activation = Activation::kGelu;
         c.tied_embeddings = true;
     }},
    {"a norm that comes in", [](ModelConfig& c) { c.attention.qk_norm.anneal_steps = 4; }},
    {"a norm of the full width",
     [](ModelConfig& c) { c.attention.qk_norm.scope = QkNormConfig::Scope::kFullWidth; }},
    {"sigma reparam, no norm",
     [](ModelConfig& c) {
         c.attention.qk_norm.kind = QkNormConfig::Kind::kNone;
         c.sigma_reparam = true;
     }},
    {"clipped logits",
     [](ModelConfig& c) {
         c.attention.qk_norm.kind = QkNormConfig::Kind::kNone;
         c.attention.qk_clip_threshold = 0.05;
     }},
    {"layer norm with bias in one layer of two, windows",
     [](ModelConfig& c) {
         c.norm.kind = NormConfig::Kind::kLayerNorm;
         c.norm.bias = true;
         c.qk_norm_layers = "1";
         c.attention.window = 5;
         c.global_interval = 2;
     }},
};

struct Outcome {
    std::vector<double> numbers;  // losses and squared norms
    std::vector<Tensor> tensors;  // gradients, masters and moments
    std::vector<MetricTable> tables;
};

class RecomputeTest : public ::testing::TestWithParam<std::tuple<DType, Device>> {
  protected:
    RecomputeTest() : grid_(world(), parallel(), device_) {}
    static ParallelConfig parallel() {
        ParallelConfig config;
        config.tensor_parallel = world().size();
        config.data_parallel = 1;
        config.communication = Communication::kStaged;
        return config;
    }
    ModelConfig model_of(const Variant& variant) const {
        ModelConfig config = testing::tiny_model();
        config.attention.num_kv_heads = 2;  // shared by ranks where these are more
        config.type =
            std::get<0>(GetParam()) == DType::kBFloat16 ? ComputeType::kBf16 : ComputeType::kFp32;
        if (device_ == Device::kCuda) {
            config.attention.head_dim = 64;
            config.width = 64;
            config.num_layers = 1;  // emulated GPUs are slow
        }
        variant.apply(config);
        config.validate(grid_.tp_size(), device_);
        return config;
    }

    // Steps of two micro-batches; on CUDA the last ones are replayed from graphs where those are on.
    Outcome train(const ModelConfig& config, int steps, bool graphs = false) {
        std::optional<Stream> stream;
        std::optional<StreamScope> scope;
        if (device_ == Device::kCuda) {
            stream.emplace();
            scope.emplace(*stream);
        }
        LanguageModel model(grid_, config, 1);
        model.set_graphs(graphs);
        Outcome result;
        const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, device_);
        for (int step = 0; step < steps; ++step) {
            std::vector<Batch> batches;
            for (int i = 0; i < 2; ++i) {
                batches.push_back(random_batch(device_ == Device::kCpu ? 2 : 1,
                                               device_ == Device::kCpu ? 12 : 4, config.vocab_size,
                                               static_cast<std::uint64_t>(2 * step + i)));
            }
            compute_gradients(model, batches, numbers);
            adamw_step(model.buckets(), {}, 1e-3, 0.0, numbers, step + 1);
            model.finish_update();
            const Tensor read = numbers.to(Device::kCpu);
            for (int i = 0; i < 2; ++i) result.numbers.push_back(read.data<double>()[i]);
        }
        for (const Parameter* parameter : model.parameters()) {
            for (Tensor Parameter::*member :
                 {&Parameter::grad, &Parameter::master, &Parameter::exp_avg_sq}) {
                result.tensors.push_back((parameter->*member).to(Device::kCpu).clone());
            }
        }
        result.tables = model.head_metrics();
        return result;
    }

    void expect_same_run(const Variant& variant, int steps, bool graphs = false) {
        ModelConfig config = model_of(variant);
        const Outcome want = train(config, steps, graphs);
        for (const Recompute mode : kAllRecompute) {
            if (mode == Recompute::kNone) continue;
            SCOPED_TRACE(concat(variant.name, ", ", name_of(mode), ", ", grid_.tp_size(), " ranks",
                                graphs ? ", graphs" : ""));
            config.recompute = mode;
            const Outcome got = train(config, steps, graphs);
            EXPECT_EQ(got.numbers, want.numbers);
            ASSERT_EQ(got.tensors.size(), want.tensors.size());
            for (std::size_t i = 0; i < want.tensors.size(); ++i) {
                EXPECT_TRUE(same_bits(got.tensors[i], want.tensors[i])) << "tensor " << i;
            }
            ASSERT_EQ(got.tables.size(), want.tables.size());
            for (std::size_t i = 0; i < want.tables.size(); ++i) {
                EXPECT_EQ(0, std::memcmp(got.tables[i].values.data(), want.tables[i].values.data(),
                                         want.tables[i].values.size() * sizeof(float)))
                    << want.tables[i].name;
            }
        }
    }

    const Device device_ = std::get<1>(GetParam());
    ProcessGrid grid_;
};

TEST_P(RecomputeTest, EveryKindOfBlockTrainsToTheSameBits) {
    for (const Variant& variant : kArchitectures) {
        expect_same_run(variant, device_ == Device::kCpu ? 2 : 1);
    }
}

TEST_P(RecomputeTest, EveryMethodTrainsToTheSameBits) {
    if (device_ == Device::kCuda) return expect_same_run(kMethods[0], 1);
    for (const Variant& variant : kMethods) expect_same_run(variant, 2);
}

// After three passes of a kind the model records them, where it runs on one GPU.
TEST_P(RecomputeTest, RecordedPassesGiveTheSameBits) {
    if (device_ == Device::kCpu) GTEST_SKIP() << "the CPU has no graphs";
    expect_same_run(kArchitectures[0], 5, true);
}

TEST_P(RecomputeTest, OnlyResultsThatAreReadAreSummedAgain) {
    if (world().size() == 1) GTEST_SKIP() << "one rank sends nothing";
    const auto messages = [&](const ModelConfig& config) {
        LanguageModel model(grid_, config, 1);
        const std::int64_t before = grid_.tensor().counts().all_reduces;
        testing::forward_backward(model, random_batch(1, 8, config.vocab_size, 1));
        return grid_.tensor().counts().all_reduces - before;
    };
    // Sums a layer that backward makes again: of attention's output where the feed-forward layer reads it, of the
    // feed-forward layer's where a norm follows.
    const std::int64_t full[] = {1, 2, 2, 0, 2};
    for (std::size_t i = 0; i < std::size(kArchitectures); ++i) {
        SCOPED_TRACE(kArchitectures[i].name);
        ModelConfig config = model_of(kArchitectures[i]);
        const std::int64_t none = messages(config);
        for (const Recompute mode : {Recompute::kElementwise, Recompute::kAttention}) {
            config.recompute = mode;
            EXPECT_EQ(messages(config), none);
        }
        config.recompute = Recompute::kFull;
        EXPECT_EQ(messages(config), none + full[i] * config.num_layers);
    }
    // The statistic of a norm over all heads.
    ModelConfig config = model_of(kMethods[3]);
    const std::int64_t none = messages(config);
    config.recompute = Recompute::kElementwise;
    EXPECT_EQ(messages(config), none);
    config.recompute = Recompute::kAttention;
    EXPECT_EQ(messages(config), none + config.num_layers);
}

TEST_P(RecomputeTest, TheFirstNumberThatIsNotFiniteIsFoundWhereItWas) {
    if (device_ == Device::kCuda) GTEST_SKIP() << "weights are changed on the CPU";
    for (const Variant& variant : kArchitectures) {
        for (const char* name : {"layers.1.attention.wv", "layers.0.feed_forward.w_up"}) {
            std::vector<std::string> places;
            for (const Recompute mode : kAllRecompute) {
                ModelConfig config = model_of(variant);
                config.recompute = mode;
                LanguageModel model(grid_, config, 1);
                const Parameter& weight = testing::find(model, name);
                // Finite, but not what it is multiplied with.
                weight.value.fill(3e38f);
                places.push_back(model.locate_non_finite({random_batch(1, 8, 32, 1)}));
            }
            EXPECT_NE(places[0].find("(forward)"), std::string::npos) << places[0];
            for (const std::string& place : places) EXPECT_EQ(place, places[0]) << variant.name;
        }
    }
}

TEST_P(RecomputeTest, CheckpointsDoNotKnowOfIt) {
    const SharedDirectory directory;
    ModelConfig config = model_of(kArchitectures[0]);
    LanguageModel keeps(grid_, config, 1);
    config.recompute = Recompute::kFull;
    LanguageModel makes_again(grid_, config, 2);
    EXPECT_EQ(keeps.description(), makes_again.description());
    EXPECT_EQ(keeps.flops_per_token(16), makes_again.flops_per_token(16));
    const std::string place = directory.path();
    keeps.save_state(place);
    makes_again.load_state(place);
    for (std::size_t i = 0; i < keeps.parameters().size(); ++i) {
        EXPECT_TRUE(same_bits(keeps.parameters()[i]->master.to(Device::kCpu),
                              makes_again.parameters()[i]->master.to(Device::kCpu)))
            << keeps.parameters()[i]->name;
    }
}

std::vector<std::tuple<DType, Device>> trained_types() {
    std::vector<std::tuple<DType, Device>> all = {{DType::kFloat32, Device::kCpu},
                                                  {DType::kBFloat16, Device::kCpu}};
    for (const Device device : testing::test_gpus()) all.emplace_back(DType::kBFloat16, device);
    return all;
}

INSTANTIATE_TEST_SUITE_P(Types,
                         RecomputeTest,
                         ::testing::ValuesIn(trained_types()),
                         [](const auto& test) {
                             return std::string(name_of(std::get<0>(test.param))) + "_" +
                                    name_of(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace evenkeel
