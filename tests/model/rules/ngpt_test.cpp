// nGPT: weights and hidden states of unit length.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "framework/stream.h"
#include "model/generate.h"
#include "model/method.h"
#include "model/ops/unit_weights.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::find;
using testing::on;
using testing::random_batch;
using testing::SoloGrid;
using testing::to_doubles;

ModelConfig ngpt(ModelConfig config) {
    apply_method("ngpt", config);
    return config;
}

class UnitWeightsTest : public ::testing::TestWithParam<Device> {};

TEST_P(UnitWeightsTest, GivesRowsOrColumnsUnitLengthAndScalesValues) {
    for (const bool rows : {true, false}) {
        const Tensor weight = testing::gaussian({9, 37}, DType::kFloat32, 1);
        const Tensor on_device = on(GetParam(), weight).clone();
        const Tensor value = on(GetParam(), Tensor::zeros({9, 37}, DType::kBFloat16));
        const Tensor gain = on(GetParam(), testing::gaussian({9}, DType::kFloat32, 2));
        UnitMatrix matrix;
        matrix.weight = on_device.data<float>();
        matrix.value = value.raw();
        matrix.gain = gain.data<float>();
        matrix.rows = 9, matrix.columns = 37;
        matrix.factor = 3.0f;
        matrix.unit_rows = rows ? 1 : 0;
        const UnitWork work({matrix}, DType::kBFloat16, GetParam());
        normalize_weights(work);
        const auto got = to_doubles(on_device), before = to_doubles(weight), g = to_doubles(gain);
        std::vector<double> want(before.size()), want_value(before.size());
        for (std::size_t r = 0; r < 9; ++r) {
            for (std::size_t c = 0; c < 37; ++c) {
                double squares = 0.0;
                for (std::size_t i = 0; i < (rows ? 37u : 9u); ++i) {
                    const double w = before[rows ? r * 37 + i : i * 37 + c];
                    squares += w * w;
                }
                want[r * 37 + c] = before[r * 37 + c] / std::sqrt(squares);
                want_value[r * 37 + c] = 3.0 * g[r] * want[r * 37 + c];
            }
        }
        EXPECT_TRUE(testing::near(on_device, want, 3e-7, 0.0));
        EXPECT_TRUE(testing::near(value, want_value, 1.0 / 256.0, 0.0));
        // The values alone leave the weights as they are.
        value.zero();
        refresh_values(work);
        EXPECT_TRUE(testing::near(on_device, got, 0.0, 0.0));
        EXPECT_TRUE(testing::near(value, want_value, 1.0 / 256.0, 0.0));
    }
}

// L = <G, diag(factor gain) W> is linear in both.
TEST_P(UnitWeightsTest, GradientsAreThoseOfAProductOfTwo) {
    const Tensor weight = on(GetParam(), testing::gaussian({5, 40}, DType::kFloat32, 1));
    const Tensor slope = testing::gaussian({5, 40}, DType::kFloat32, 2);
    const Tensor gradient = on(GetParam(), slope).clone();
    const Tensor gain = on(GetParam(), testing::gaussian({5}, DType::kFloat32, 3));
    const Tensor gain_gradient = on(GetParam(), Tensor::full({5}, 9.0f, DType::kFloat32));
    UnitMatrix matrix;
    matrix.weight = weight.data<float>();
    matrix.gradient = gradient.data<float>();
    matrix.gain = gain.data<float>();
    matrix.gain_gradient = gain_gradient.data<float>();
    matrix.rows = 5, matrix.columns = 40;
    matrix.factor = 2.0f;
    convert_gradients(UnitWork({matrix}, DType::kBFloat16, GetParam()));
    const auto w = to_doubles(weight), s = to_doubles(slope), g = to_doubles(gain);
    std::vector<double> want, want_gain(5);
    for (std::size_t i = 0; i < w.size(); ++i) {
        want.push_back(2.0 * g[i / 40] * s[i]);
        want_gain[i / 40] += 2.0 * s[i] * w[i];
    }
    EXPECT_TRUE(testing::near(gradient, want, 1e-6, 0.0));
    EXPECT_TRUE(testing::near(gain_gradient, want_gain, 1e-5, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(,
                         UnitWeightsTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

// The largest distance from 1 of a length along the width of the stream, over all matrices.
double worst_length(LanguageModel& model) {
    double worst = 0.0;
    for (const Parameter* parameter : model.parameters()) {
        if (parameter->global_shape.size() != 2 ||
            parameter->name.find("gain") != std::string::npos)
            continue;
        const auto w = to_doubles(parameter->master);
        const auto rows = static_cast<std::size_t>(parameter->master.size(0));
        const auto columns = static_cast<std::size_t>(parameter->master.size(1));
        const bool down = parameter->name.ends_with(".wo") || parameter->name.ends_with(".w_down");
        for (std::size_t i = 0; i < (down ? columns : rows); ++i) {
            double squares = 0.0;
            for (std::size_t j = 0; j < (down ? rows : columns); ++j) {
                const double x = w[down ? j * columns + i : i * columns + j];
                squares += x * x;
            }
            worst = std::max(worst, std::abs(std::sqrt(squares) - 1.0));
        }
    }
    return worst;
}

TEST(NgptTest, WeightsKeepUnitLengthThroughTraining) {
    const SoloGrid solo;
    for (const Activation activation : {Activation::kSwiGlu, Activation::kGelu}) {
        ModelConfig config = ngpt(testing::tiny_model());
        config.activation = activation;
        LanguageModel model(solo.grid, config, 1);
        EXPECT_LT(worst_length(model), 1e-6);
        const auto curve = testing::train_steps(model, 0, 10);
        EXPECT_LT(worst_length(model), 1e-6);
        EXPECT_LT(curve.losses.back(), curve.losses.front());
    }
}

TEST(NgptTest, ParametersStartInTheirUnits) {
    const SoloGrid solo;
    const ModelConfig config = ngpt(testing::tiny_model());
    LanguageModel model(solo.grid, config, 1);
    const double unit = 1.0 / std::sqrt(static_cast<double>(config.width));
    for (const auto& [name, want] : {std::pair{"layers.0.attention_rate", unit},
                                     {"layers.1.feed_forward_rate", unit},
                                     {"layers.0.attention.q_gain", unit},
                                     {"layers.0.attention.k_gain", unit},
                                     {"layers.0.feed_forward.w_up_scale", 1.0},
                                     {"layers.0.feed_forward.w_gate_scale", 1.0},
                                     {"output_scale", unit}}) {
        for (const double value : to_doubles(find(model, name).master)) {
            EXPECT_NEAR(value, want, 1e-7) << name;
        }
        EXPECT_FALSE(find(model, name).weight_decay) << name;
    }
    // The gate's nonlinearity meets numbers of the size of 1.
    const Parameter& gate = find(model, "layers.0.feed_forward.w_gate");
    auto scaled = to_doubles(gate.master);
    for (double& w : scaled) w /= unit;
    EXPECT_TRUE(testing::near(gate.value, scaled, 1e-6, 0.0));
    for (const Parameter* parameter : model.parameters()) {
        if (parameter->name != "layers.0.attention.q_gain" &&
            parameter->name.find("gain") == std::string::npos) {
            EXPECT_FALSE(parameter->weight_decay) << parameter->name;
        }
    }
}

// At the start logits are sqrt(D) cos(q, k), those of RMSNorm with gains 1 and the scale 1 / sqrt(D).
TEST(NgptTest, AttendsAtFirstAsRmsNormWithoutGains) {
    const SoloGrid solo;
    AttentionConfig config = ngpt(testing::tiny_model()).attention;
    EXPECT_NEAR(config.logit_scale(), std::sqrt(32.0), 1e-12);
    AttentionConfig rms = config;
    rms.softmax_scale = 0.0;
    rms.qk_norm = {};
    rms.qk_norm.eps = 1e-8;
    config.qk_norm.eps = 32.0 * rms.qk_norm.eps;  // of the sum, not of the mean
    TensorParallelAttention a(solo.grid, config, 32, DType::kFloat32, "a");
    TensorParallelAttention b(solo.grid, rms, 32, DType::kFloat32, "a");
    ParameterList of_a, of_b;
    a.collect_parameters(of_a);
    b.collect_parameters(of_b);
    const ParameterBuckets memory_a(of_a, Device::kCpu), memory_b(of_b, Device::kCpu);
    a.initialize(0.3, 0.3, 1);
    b.initialize(0.3, 0.3, 1);
    const Tensor x = testing::gaussian({2, 9, 32}, DType::kFloat32, 5);
    AttentionSaved saved;
    const auto want = to_doubles(b.forward(x, {}, saved, nullptr));
    EXPECT_TRUE(testing::near(a.forward(x, {}, saved, nullptr), want, 1e-5, 1e-5));
}

// The loss against finite differences of all parameters, along the gradient.
TEST(NgptTest, TheLossGrowsAlongTheGradientByItsNorm) {
    const SoloGrid solo;
    ModelConfig config = ngpt(testing::tiny_model());
    LanguageModel model(solo.grid, config, 1);
    testing::train_steps(model, 0, 3);
    const Batch batch = random_batch(2, 20, 32, 3);
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    compute_gradients(model, {&batch, 1}, numbers);
    // The matrices stand where the step put them while their gains and the rates move, and the rule leaves unit
    // rows as they are; so a scale's derivative is that of the loss.
    for (const char* name : {"layers.0.attention_rate", "layers.1.feed_forward_rate",
                             "layers.0.attention.q_gain", "layers.1.feed_forward.w_gate_scale",
                             "layers.0.feed_forward.w_up_scale", "output_scale"}) {
        Parameter& parameter = find(model, name);
        const auto gradient = to_doubles(parameter.grad);
        const double norm =
            std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
        const Tensor before = parameter.master.clone();
        const double distance = 0.02 * std::sqrt(static_cast<double>(gradient.size())) *
                                std::abs(static_cast<double>(before.data<float>()[0]));
        const auto loss_at = [&](double by) {
            for (std::size_t i = 0; i < gradient.size(); ++i) {
                parameter.master.data<float>()[i] =
                    before.data<float>()[i] + static_cast<float>(by / norm * gradient[i]);
            }
            parameter.refresh_value();
            model.finish_update();
            return model.evaluate(batch);
        };
        const double slope = (loss_at(distance) - loss_at(-distance)) / (2.0 * distance);
        EXPECT_NEAR(slope / norm, 1.0, 0.02) << name << ", norm " << norm << ", slope " << slope;
        loss_at(0.0);
    }
}

TEST(NgptTest, DecodesWhatItPredictsAtOnce) {
    const SoloGrid solo;
    ModelConfig config = ngpt(testing::tiny_model());
    config.vocab_size = 256;
    LanguageModel model(solo.grid, config, 1);
    const Batch batch = random_batch(1, 12, 256, 4);
    const Tensor logits = model.local_logits(batch.tokens);
    auto state = model.start_decoding(1, 12);
    model.decode(*state, batch.tokens.slice(1, 0, 7).contiguous());
    for (std::int64_t t = 7; t < 12; ++t) {
        const Tensor got = model.decode(*state, batch.tokens.slice(1, t, t + 1).contiguous());
        EXPECT_TRUE(testing::near(got, to_doubles(logits.slice(1, t, t + 1)), 1e-4, 1e-4))
            << "position " << t;
    }
    EXPECT_EQ(generate(model, "keel", {.tokens = 8, .temperature = 0.0}).size(), 12u);
}

TEST(NgptTest, NamesWhatIsNotFinite) {
    const SoloGrid solo;
    LanguageModel model(solo.grid, ngpt(testing::tiny_model()), 1);
    find(model, "layers.1.feed_forward_rate").value.slice(0, 3, 4).fill(NAN);
    EXPECT_EQ(model.locate_non_finite({random_batch(2, 16, 32, 1)}),
              "layers.1.feed_forward_rate (weight)");
}

class NgptModelTest : public ::testing::TestWithParam<Device> {
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
    static ModelConfig config() {
        ModelConfig config = ngpt(testing::small_gpu_model());
        config.num_layers = 1;
        config.attention.num_heads = 2;
        config.attention.num_kv_heads = 1;
        return config;
    }
};

TEST_P(NgptModelTest, TrainsAsTheCpuDoesInFp32) {
    ModelConfig config = this->config();
    const Grid device(GetParam()), cpu(Device::kCpu);
    LanguageModel model(device.grid, config, 1), rounded(cpu.grid, config, 1);
    config.type = ComputeType::kFp32;
    LanguageModel exact(cpu.grid, config, 1);
    const auto got = testing::train_steps(model, 0, 4);
    testing::expect_follows(got, testing::train_steps(exact, 0, 4),
                            testing::train_steps(rounded, 0, 4));
    EXPECT_LT(got.losses.back(), got.losses.front());
}

TEST_P(NgptModelTest, GoesOnFromACheckpointBitForBit) {
    const Grid grid(GetParam());
    const testing::TemporaryDirectory files;
    LanguageModel model(grid.grid, config(), 1), resumed(grid.grid, config(), 2);
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
                         NgptModelTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST(NgptTest, RefusesWhatDoesNotGoWithUnitWeights) {
    for (const auto change : {+[](ModelConfig& c) { c.sigma_reparam = true; },
                              +[](ModelConfig& c) { c.tied_embeddings = true; },
                              +[](ModelConfig& c) { c.init_std = 0.0; }}) {
        ModelConfig config = ngpt(testing::tiny_model());
        EXPECT_NO_THROW(config.validate(1));
        change(config);
        EXPECT_THROW(config.validate(1), Error);
    }
}

// The scale of logits follows the head width, wherever it stands.
TEST(NgptTest, ScaleAndUnitsFollowTheSizes) {
    ModelConfig config;
    const VisitFields visit = [&](ConfigVisitor& v) { config.visit_fields(v); };
    parse_config(visit, R"({"method": "ngpt", "attention": {"head_dim": 64}, "width": 1024})", "a");
    EXPECT_EQ(config.attention.softmax_scale, 8.0);
    EXPECT_EQ(config.attention.qk_norm.gain_unit, 1.0 / 32.0);
}

}  // namespace
}  // namespace evenkeel
