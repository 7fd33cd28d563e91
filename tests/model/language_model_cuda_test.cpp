// A language model on a GPU against the same model on the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/stream.h"
#include "model/generate.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::random_batch;
using testing::train_steps;
using testing::TrainingCurve;

struct Grid {
    std::unique_ptr<Communicator> world = make_single_communicator();
    ProcessGrid grid;

    explicit Grid(Device device) : grid(*world, ParallelConfig{}, device) {}
};

class LanguageModelCudaTest : public ::testing::TestWithParam<std::tuple<Device, ComputeType>> {
  protected:
    static bool fp32() { return std::get<1>(GetParam()) == ComputeType::kFp32; }
    static ModelConfig small_model() {
        ModelConfig config = testing::small_gpu_model();
        config.type = std::get<1>(GetParam());
        return config;
    }
    Stream stream_;
    StreamScope scope_{stream_};
    Grid cpu_{Device::kCpu}, gpu_{Device::kCuda};

    // Losses, gradient norms and head tables of a few steps; of the default model of more.
    void expect_trains_as_cpu(ModelConfig config, bool is_default) {
        const int steps = is_default && !fp32() ? 5 : 2;
        LanguageModel gpu(gpu_.grid, config, 1), cpu(cpu_.grid, config, 1);
        const TrainingCurve got = train_steps(gpu, 0, steps),
                            on_cpu_too = train_steps(cpu, 0, steps);
        if (fp32()) {
            testing::expect_follows_in_fp32(got, on_cpu_too);
        } else {
            config.type = ComputeType::kFp32;
            LanguageModel exact(cpu_.grid, config, 1);
            testing::expect_follows(got, train_steps(exact, 0, steps), on_cpu_too);
            EXPECT_LT(got.losses.back(), got.losses.front());
        }
        const double tolerance = fp32() ? 1e-3 : 0.02;
        const auto on_gpu = gpu.head_metrics(), on_cpu = cpu.head_metrics();
        ASSERT_EQ(on_gpu.size(), on_cpu.size());
        for (std::size_t table = 0; table < on_gpu.size(); ++table) {
            ASSERT_EQ(on_gpu[table].name, on_cpu[table].name);
            // What the kernels do not report is zero.
            const std::vector<float> zeros(on_gpu[table].values.size(), 0.0f);
            if (on_gpu[table].values == zeros) continue;
            for (std::size_t i = 0; i < on_gpu[table].values.size(); ++i) {
                // What a layer does not have.
                const bool on_both = std::isfinite(on_gpu[table].values[i]) ||
                                     std::isfinite(on_cpu[table].values[i]);
                if (!on_both) continue;
                EXPECT_NEAR(on_gpu[table].values[i], on_cpu[table].values[i],
                            tolerance * std::abs(on_cpu[table].values[i]) + tolerance)
                    << on_gpu[table].name << " " << i;
            }
        }
    }
};

// What is the same whatever the type: emulated fp32 takes three times as long.
class LanguageModelInOneTypeCudaTest : public LanguageModelCudaTest {};

TEST_P(LanguageModelCudaTest, TrainsAsTheCpuDoes) {
    for (const char* variant : {"default", "gelu, tied", "no norm", "shared gains, window"}) {
        SCOPED_TRACE(variant);
        ModelConfig config = small_model();
        const std::string name = variant;
        if (name == "gelu, tied") {
            config.activation = Activation::kGelu;
            config.tied_embeddings = true;
        }
        if (name == "no norm") config.attention.qk_norm.kind = QkNormConfig::Kind::kNone;
        if (name == "shared gains, window") {
            config.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
            config.attention.window = 7;
        }
        expect_trains_as_cpu(config, name == "default");
    }
}

TEST_P(LanguageModelCudaTest, TrainsEveryKindOfBlockAsTheCpuDoes) {
    for (const testing::FamilyTraits& family : testing::kFamilyTraits) {
        SCOPED_TRACE(family.name);
        ModelConfig config = small_model();
        config.feed_forward_width = 32;
        family.apply(config);
        if (config.architecture == Architecture::kPreNorm) continue;
        expect_trains_as_cpu(config, false);
    }
}

TEST_P(LanguageModelInOneTypeCudaTest, ReplayedStepsGiveTheSameBits) {
    LanguageModel recorded(gpu_.grid, small_model(), 1), direct(gpu_.grid, small_model(), 1);
    direct.set_graphs(false);
    const TrainingCurve got = train_steps(recorded, 0, 6), want = train_steps(direct, 0, 6);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.norms, want.norms);
    for (std::size_t i = 0; i < direct.parameters().size(); ++i) {
        EXPECT_TRUE(testing::same_bits(recorded.parameters()[i]->master.to(Device::kCpu),
                                       direct.parameters()[i]->master.to(Device::kCpu)))
            << direct.parameters()[i]->name;
    }
    const auto of_recorded = recorded.head_metrics(), of_direct = direct.head_metrics();
    ASSERT_EQ(of_recorded.size(), of_direct.size());
    for (std::size_t table = 0; table < of_direct.size(); ++table) {
        EXPECT_EQ(of_recorded[table].values, of_direct[table].values) << of_direct[table].name;
    }
}

TEST_P(LanguageModelInOneTypeCudaTest, CheckpointsCrossDevicesBitForBit) {
    const testing::TemporaryDirectory from_gpu, from_cpu;
    LanguageModel gpu(gpu_.grid, small_model(), 1), cpu(cpu_.grid, small_model(), 2);
    train_steps(gpu, 0, 2);
    gpu.save_state(from_gpu.path());
    cpu.load_state(from_gpu.path());
    cpu.save_state(from_cpu.path());
    LanguageModel again(gpu_.grid, small_model(), 3);
    again.load_state(from_cpu.path());
    for (std::size_t i = 0; i < gpu.parameters().size(); ++i) {
        for (Tensor Parameter::*part :
             {&Parameter::value, &Parameter::master, &Parameter::exp_avg, &Parameter::exp_avg_sq}) {
            const Tensor want = (gpu.parameters()[i]->*part).to(Device::kCpu);
            EXPECT_TRUE(testing::same_bits(cpu.parameters()[i]->*part, want))
                << gpu.parameters()[i]->name;
            EXPECT_TRUE(testing::same_bits((again.parameters()[i]->*part).to(Device::kCpu), want))
                << gpu.parameters()[i]->name;
        }
    }
    // A resumed run goes on as if nothing had happened.
    EXPECT_EQ(train_steps(again, 2, 1).losses, train_steps(gpu, 2, 1).losses);
}

TEST_P(LanguageModelCudaTest, DecodesWhatItPredictsAtOnce) {
    ModelConfig config = small_model();
    config.vocab_size = 256;
    LanguageModel model(gpu_.grid, config, 1);
    const Batch batch = random_batch(1, 12, 256, 4);
    const Tensor logits = model.local_logits(batch.tokens).to(Device::kCpu).to(DType::kFloat32);
    const double tolerance = fp32() ? 1e-4 : 0.02;
    auto state = model.start_decoding(1, 12);
    model.decode(*state, batch.tokens.slice(1, 0, 7).contiguous());
    for (std::int64_t t = 7; t < 12; ++t) {
        const Tensor got = model.decode(*state, batch.tokens.slice(1, t, t + 1).contiguous());
        EXPECT_TRUE(testing::near(got, testing::to_doubles(logits.slice(1, t, t + 1)), tolerance,
                                  tolerance))
            << "position " << t;
    }
    EXPECT_EQ(generate(model, "keel", {.tokens = 8, .temperature = 0.0}).size(), 12u);
}

TEST_P(LanguageModelCudaTest, NamesWhatIsNotFinite) {
    LanguageModel model(gpu_.grid, small_model(), 1);
    const Parameter& weight = testing::find(model, "layers.1.attention.wk");
    weight.value.slice(0, 3, 4).fill(INFINITY);
    EXPECT_EQ(model.locate_non_finite({random_batch(2, 16, 32, 1)}),
              "layers.1.attention.wk (weight)");
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64, Device::kCuda);
    const Tensor before = testing::find(model, "embedding").master.to(Device::kCpu);
    const Batch batch = random_batch(2, 16, 32, 1);
    compute_gradients(model, {&batch, 1}, numbers);
    adamw_step(model.buckets(), {}, 1e-2, 1.0, numbers, 1);
    EXPECT_FALSE(std::isfinite(numbers.to(Device::kCpu).data<double>()[kLossIndex]));
    EXPECT_TRUE(
        testing::same_bits(testing::find(model, "embedding").master.to(Device::kCpu), before))
        << "an update was made";
}

TEST_P(LanguageModelCudaTest, RefusesWhatGpusDoNotTake) {
    const auto refusal = [&](auto&& change) {
        ModelConfig config = small_model();
        change(config);
        try {
            LanguageModel model(gpu_.grid, config, 1);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_NE(refusal([](ModelConfig& c) {
                  c.attention.head_dim = 32;
              }).find("model.attention.head_dim: got 32, want one of 64, 96, 128, 256"),
              std::string::npos);
    LanguageModel model(gpu_.grid, small_model(), 1);
    Batch batch = random_batch(1, 8, 32, 1);
    batch.tokens.data<std::int32_t>()[5] = 32;
    EXPECT_THROW(testing::forward_backward(model, batch), Error);
}

std::string name_of_test(const ::testing::TestParamInfo<std::tuple<Device, ComputeType>>& test) {
    const bool fp32 = std::get<1>(test.param) == ComputeType::kFp32;
    return std::string(name_of(std::get<0>(test.param))) + (fp32 ? "_fp32" : "_bf16");
}

INSTANTIATE_TEST_SUITE_P(,
                         LanguageModelCudaTest,
                         ::testing::Combine(::testing::ValuesIn(testing::test_gpus()),
                                            ::testing::Values(ComputeType::kBf16,
                                                              ComputeType::kFp32)),
                         name_of_test);
INSTANTIATE_TEST_SUITE_P(,
                         LanguageModelInOneTypeCudaTest,
                         ::testing::Combine(::testing::ValuesIn(testing::test_gpus()),
                                            ::testing::Values(ComputeType::kBf16)),
                         name_of_test);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LanguageModelCudaTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LanguageModelInOneTypeCudaTest);

}  // namespace
}  // namespace evenkeel
