// Models whose linear layers multiply with gamma W / sigma(W).
#include "model/rules/sigma_reparam.h"

#include <gtest/gtest.h>

#include <cmath>

#include "framework/stream.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::find;
using testing::random_batch;
using testing::SoloGrid;
using testing::to_doubles;

// Small: every step is one of the emulator's too.
ModelConfig one_layer() {
    ModelConfig config = testing::small_gpu_model();
    config.num_layers = 1;
    config.attention.num_heads = 2;
    config.attention.num_kv_heads = 1;
    return config;
}

ModelConfig with_sigma_reparam(ModelConfig config) {
    config.sigma_reparam = true;
    return config;
}

TEST(SigmaReparamTest, StartsAsTheSameFunctionWithGammaTheNormAndAnotherWithOne) {
    const SoloGrid solo;
    for (const Activation activation : {Activation::kSwiGlu, Activation::kGelu}) {
        ModelConfig config = testing::tiny_model();
        config.activation = activation;
        LanguageModel plain(solo.grid, config, 1);
        LanguageModel model(solo.grid, with_sigma_reparam(config), 1);
        const Batch batch = random_batch(2, 20, config.vocab_size, 3);
        const auto want = to_doubles(plain.local_logits(batch.tokens));
        EXPECT_TRUE(testing::near(model.local_logits(batch.tokens), want, 1e-6, 1e-6));
        for (Parameter* parameter : model.parameters()) {
            if (parameter->name.ends_with("_gamma")) init_constant(*parameter, 1.0f);
        }
        model.finish_update();
        const auto changed = to_doubles(model.local_logits(batch.tokens));
        double difference = 0.0;
        for (std::size_t i = 0; i < want.size(); ++i) {
            difference = std::max(difference, std::abs(changed[i] - want[i]));
        }
        EXPECT_GT(difference, 0.1);
    }
}

TEST(SigmaReparamTest, ReparametrisesEveryLinearLayerOfTheBlocksAndNothingElse) {
    const SoloGrid solo;
    const ModelConfig config = with_sigma_reparam(testing::tiny_model());
    LanguageModel model(solo.grid, config, 1);
    int matrices = 0;
    for (const Parameter* parameter : model.parameters()) {
        EXPECT_EQ(parameter->derived_value, parameter->name.find(".w") != std::string::npos &&
                                                parameter->trained &&
                                                !parameter->name.ends_with("_gamma"))
            << parameter->name;
        matrices += parameter->derived_value ? 1 : 0;
        if (parameter->name.ends_with("_gamma")) {
            EXPECT_FALSE(parameter->weight_decay);
            EXPECT_TRUE(parameter->trained);
        }
    }
    EXPECT_EQ(matrices, 7 * config.num_layers);
}

// Along the gradient of all weights and gammas the loss grows by its norm. The iteration has converged, so u
// and v may be found anew: sigma's derivative by them is zero.
TEST(SigmaReparamTest, TheLossGrowsAlongTheGradientByItsNorm) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, with_sigma_reparam(testing::tiny_model()), 1);
    for (int i = 0; i < 200; ++i) model.finish_update();
    const Batch batch = random_batch(2, 20, 32, 3);
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    compute_gradients(model, {&batch, 1}, numbers);
    std::vector<Parameter*> moved;
    double squares = 0.0;
    for (Parameter* parameter : model.parameters()) {
        if (!parameter->derived_value && !parameter->name.ends_with("_gamma")) continue;
        moved.push_back(parameter);
        for (const double g : to_doubles(parameter->grad)) squares += g * g;
    }
    const double norm = std::sqrt(squares), step = 0.02;
    const auto loss_at = [&](double distance) {
        std::vector<Tensor> before;
        for (Parameter* parameter : moved) {
            before.push_back(parameter->master.clone());
            for (std::int64_t i = 0; i < parameter->master.numel(); ++i) {
                parameter->master.data<float>()[i] +=
                    static_cast<float>(distance / norm) * parameter->grad.data<float>()[i];
            }
        }
        model.finish_update();
        const double loss = model.evaluate(batch);
        for (std::size_t i = 0; i < moved.size(); ++i) moved[i]->master.copy_from(before[i]);
        return loss;
    };
    const double slope = (loss_at(step) - loss_at(-step)) / (2.0 * step);
    EXPECT_NEAR(slope / norm, 1.0, 0.01) << "norm " << norm << ", slope " << slope;
}

class SigmaReparamModelTest : public ::testing::TestWithParam<Device> {
  protected:
    struct Grid {
        std::unique_ptr<Communicator> world = make_single_communicator();
        ProcessGrid grid;
        explicit Grid(Device device) : grid(*world, ParallelConfig{}, device) {}
    };
    // Another stream than the default one, so that steps are recorded and replayed on CUDA.
    std::unique_ptr<Stream> stream_;
    std::unique_ptr<StreamScope> scope_;
    void SetUp() override {
        if (GetParam() == Device::kCpu) return;
        stream_ = std::make_unique<Stream>();
        scope_ = std::make_unique<StreamScope>(*stream_);
    }
};

TEST_P(SigmaReparamModelTest, TrainsAsTheCpuDoesInFp32) {
    ModelConfig config = with_sigma_reparam(one_layer());
    const Grid device(GetParam()), cpu(Device::kCpu);
    LanguageModel model(device.grid, config, 1), rounded(cpu.grid, config, 1);
    config.type = ComputeType::kFp32;
    LanguageModel exact(cpu.grid, config, 1);
    const auto got = testing::train_steps(model, 0, 4);
    testing::expect_follows(got, testing::train_steps(exact, 0, 4),
                            testing::train_steps(rounded, 0, 4));
    EXPECT_LT(got.losses.back(), got.losses.front());
}

TEST_P(SigmaReparamModelTest, GoesOnFromACheckpointBitForBit) {
    const ModelConfig config = with_sigma_reparam(one_layer());
    const Grid grid(GetParam());
    const testing::TemporaryDirectory files;
    LanguageModel model(grid.grid, config, 1), resumed(grid.grid, config, 2);
    testing::train_steps(model, 0, 1);
    model.save_state(files.path());
    resumed.load_state(files.path());
    EXPECT_EQ(testing::train_steps(model, 1, 1).losses, testing::train_steps(resumed, 1, 1).losses);
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
        const Parameter &a = *model.parameters()[i], &b = *resumed.parameters()[i];
        for (Tensor Parameter::*part : {&Parameter::value, &Parameter::master}) {
            EXPECT_TRUE(testing::same_bits((b.*part).to(Device::kCpu), (a.*part).to(Device::kCpu)))
                << a.name;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(,
                         SigmaReparamModelTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

// What another program reads: the weight that is multiplied with is NAME gamma / sigma.
TEST(SigmaReparamTest, CheckpointsHoldWhatMakesTheWeight) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, with_sigma_reparam(testing::tiny_model()), 1);
    testing::train_steps(model, 0, 3);
    const Parameter& weight = find(model, "layers.1.feed_forward.w_down");
    const double gamma = to_doubles(find(model, weight.name + "_gamma").master)[0];
    const double sigma = to_doubles(find(model, weight.name + "_sigma").master)[0];
    EXPECT_NE(gamma, sigma);
    auto want = to_doubles(weight.master);
    for (double& w : want) w *= gamma / sigma;
    EXPECT_TRUE(testing::near(weight.value, want, 1e-6, 1e-7));
}

TEST(SigmaReparamTest, RefusesWeightsThatAreAllZero) {
    ModelConfig config = with_sigma_reparam(testing::tiny_model());
    config.init_std = 0.0;
    EXPECT_THROW(config.validate(1), Error);
}

}  // namespace
}  // namespace evenkeel
