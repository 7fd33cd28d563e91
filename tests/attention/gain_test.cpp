#include "attention/gain.h"

#include <cmath>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel::testing {
namespace {

using Gain = QkNormConfig::Gain;
using Form = QkNormConfig::GainForm;
constexpr DType kFp32 = DType::kFloat32;
constexpr std::int64_t kHeads = 3, kDim = 64;

Shape shape_of(Gain gain) {
    switch (gain) {
        case Gain::kPerHeadChannel:
            return {kHeads, kDim};
        case Gain::kSharedChannel:
            return {kDim};
        case Gain::kPerHeadScalar:
            return {kHeads};
        default:
            return {1};
    }
}
constexpr Gain kGains[] = {Gain::kPerHeadChannel, Gain::kSharedChannel, Gain::kPerHeadScalar,
                           Gain::kScalar};

QkNormConfig config_of(Gain gain, Form form, double unit = 1.0, double offset = 0.0) {
    QkNormConfig config;
    config.gain = gain;
    config.gain_form = form;
    config.gain_unit = unit;
    config.gain_offset = offset;
    return config;
}

Tensor floats(const std::vector<float>& values, const Shape& shape) {
    const Tensor tensor = Tensor::uninitialized(shape, kFp32);
    std::copy(values.begin(), values.end(), tensor.data<float>());
    return tensor;
}

class GainTest : public ::testing::TestWithParam<Device> {
  protected:
    Device device() const { return GetParam(); }
    Tensor effective(const Tensor& parameter, const QkNormConfig& config) const {
        return on_cpu(effective_gain(on(device(), parameter), config, kHeads, kDim));
    }
    Tensor gradient(const Tensor& dgain,
                    const Tensor& parameter,
                    const QkNormConfig& config) const {
        const Tensor dparameter = on(device(), Tensor::full(parameter.shape(), 2.0f, kFp32));
        add_gain_gradient(on(device(), dgain), on(device(), parameter), config, dparameter);
        return on_cpu(dparameter);
    }
};
INSTANTIATE_TEST_SUITE_P(, GainTest, ::testing::ValuesIn(test_devices()), device_name);

TEST_P(GainTest, EveryFormGivesValuesWorkedOutByHand) {
    const Tensor parameter = floats({0.5f, -1.0f, 2.0f}, {kHeads});
    const auto rows = [](std::vector<double> heads) {
        std::vector<double> all;
        for (const double value : heads) all.insert(all.end(), kDim, value);
        return all;
    };
    const Gain gain = Gain::kPerHeadScalar;
    EXPECT_TRUE(near(effective(parameter, config_of(gain, Form::kLinear)), rows({0.5, -1.0, 2.0}),
                     0.0, 0.0));
    EXPECT_TRUE(near(effective(parameter, config_of(gain, Form::kLinear, 0.25, 1.0)),
                     rows({3.0, -3.0, 9.0}), 0.0, 0.0));
    EXPECT_TRUE(near(effective(parameter, config_of(gain, Form::kExponential)),
                     rows({std::exp(0.5), std::exp(-1.0), std::exp(2.0)}), 3e-7, 0.0));
}

TEST_P(GainTest, EveryKindSpreadsItsParameterOverHeadsAndChannels) {
    for (const Gain gain : kGains) {
        SCOPED_TRACE(static_cast<int>(gain));
        const Tensor parameter = gaussian(shape_of(gain), kFp32, 1);
        const Tensor got = effective(parameter, config_of(gain, Form::kLinear, 0.5, 1.0));
        const Shape want = gain == Gain::kSharedChannel ? Shape{kDim} : Shape{kHeads, kDim};
        ASSERT_EQ(got.shape(), want);
        for (std::int64_t i = 0; i < got.numel(); ++i) {
            const std::int64_t from = gain == Gain::kPerHeadScalar ? i / kDim
                                      : gain == Gain::kScalar      ? 0
                                                                   : i;
            EXPECT_FLOAT_EQ(got.data<float>()[i], 1.0f + 2.0f * parameter.data<float>()[from]) << i;
        }
    }
}

// The chain rule against central differences of <dgain, gain>, added to what is there.
TEST_P(GainTest, GradientsMatchFiniteDifferences) {
    for (const Gain gain : kGains) {
        for (const QkNormConfig& config :
             {config_of(gain, Form::kLinear, 0.25, 1.0), config_of(gain, Form::kExponential)}) {
            SCOPED_TRACE(concat("gain ", static_cast<int>(gain), ", form ",
                                static_cast<int>(config.gain_form)));
            const Tensor parameter = gaussian(shape_of(gain), kFp32, 1);
            const Tensor like = effective(parameter, config);
            const Tensor dgain = gaussian(like.shape(), kFp32, 2);
            const Tensor got = gradient(dgain, parameter, config);
            const auto loss = [&] {
                const std::vector<double> g = to_doubles(effective(parameter, config));
                const std::vector<double> d = to_doubles(dgain);
                double sum = 0.0;
                for (std::size_t i = 0; i < g.size(); ++i) sum += g[i] * d[i];
                return sum;
            };
            for (std::int64_t i = 0; i < parameter.numel(); i += 1 + parameter.numel() / 8) {
                float& value = parameter.data<float>()[i];
                const float kept = value, step = 1.0f / 128;
                value = kept + step;
                const double above = loss();
                value = kept - step;
                const double below = loss();
                value = kept;
                const double want = 2.0 + (above - below) / (2.0 * step);
                EXPECT_NEAR(got.data<float>()[i], want, 2e-4 * (10.0 + std::abs(want))) << i;
            }
        }
    }
}

TEST_P(GainTest, TheExponentialFormStopsAtItsLimitAndLearnsNothingBeyond) {
    const QkNormConfig config = config_of(Gain::kPerHeadScalar, Form::kExponential);
    const auto limit = static_cast<float>(std::log(100.0));
    const Tensor parameter = floats({limit + 0.1f, limit, 50.0f}, {kHeads});
    EXPECT_TRUE(
        near(effective(parameter, config), std::vector<double>(kHeads * kDim, 100.0), 1e-6, 0.0));
    const Tensor got = gradient(Tensor::full({kHeads, kDim}, 1.0f, kFp32), parameter, config);
    EXPECT_TRUE(near(got, {2.0, 2.0 + kDim * 100.0, 2.0}, 1e-6, 0.0));
}

// Sums of numbers that fp32 would lose: 2^24 + 1 is not one of its numbers.
TEST_P(GainTest, SumsAreInDouble) {
    const Tensor dgain = Tensor::full({kHeads, kDim}, 1.0f, kFp32);
    dgain.data<float>()[0] = 16777216.0f;
    dgain.data<float>()[kDim] = -16777216.0f;
    const Tensor got =
        gradient(dgain, floats({1.0f}, {1}), config_of(Gain::kScalar, Form::kLinear));
    EXPECT_TRUE(near(got, {2.0 + kHeads * kDim - 2.0}, 0.0, 0.0));
}

TEST_P(GainTest, NotANumberShows) {
    const Tensor parameter =
        floats({0.0f, std::numeric_limits<float>::quiet_NaN(), 0.0f}, {kHeads});
    for (const Form form : {Form::kLinear, Form::kExponential}) {
        const Tensor got = effective(parameter, config_of(Gain::kPerHeadScalar, form));
        EXPECT_TRUE(std::isnan(got.data<float>()[kDim]));
        EXPECT_TRUE(std::isfinite(got.data<float>()[0]));
    }
}

// max(gain, 2^-20)^lambda; at 1 the gain as it is.
TEST_P(GainTest, PowersOfGainsAreTakenOfPositiveOnes) {
    const QkNormConfig config = config_of(Gain::kPerHeadScalar, Form::kLinear, 1.0, 1.0);
    const Tensor parameter = floats({3.0f, -3.0f, -1.0f + 0x1p-22f}, {kHeads});
    const auto heads = [&](double lambda) {
        const Tensor there = on(device(), floats({static_cast<float>(lambda)}, {1}));
        const Tensor gain =
            on_cpu(effective_gain(on(device(), parameter), config, kHeads, kDim, there));
        const float* values = gain.data<float>();
        return std::vector<double>{values[0], values[kDim], values[3 * kDim - 1]};
    };
    EXPECT_EQ(heads(0.0), (std::vector<double>{1.0, 1.0, 1.0}));
    EXPECT_EQ(heads(1.0), (std::vector<double>{4.0, -2.0, 0x1p-22}));
    const std::vector<double> halfway = heads(0.5);
    EXPECT_NEAR(halfway[0], 2.0, 1e-6);
    EXPECT_NEAR(halfway[1], 0x1p-10, 1e-9);
    EXPECT_NEAR(halfway[2], 0x1p-10, 1e-9);
}

TEST_P(GainTest, GradientsOfPowersMatchFiniteDifferences) {
    for (const Gain gain : kGains) {
        for (const QkNormConfig& config :
             {config_of(gain, Form::kLinear, 0.25, 1.0), config_of(gain, Form::kExponential)}) {
            for (const double power : {0.0, 0.3, 1.0}) {
                SCOPED_TRACE(concat("gain ", static_cast<int>(gain), ", form ",
                                    static_cast<int>(config.gain_form), ", lambda ", power));
                const Tensor lambda = floats({static_cast<float>(power)}, {1});
                const Tensor parameter = gaussian(shape_of(gain), kFp32, 1);
                const auto effective_here = [&] {
                    return to_doubles(effective_gain(on(device(), parameter), config, kHeads, kDim,
                                                     on(device(), lambda)));
                };
                const Tensor like = effective_gain(parameter, config, kHeads, kDim, lambda);
                const Tensor dgain = gaussian(like.shape(), kFp32, 2);
                const Tensor dparameter =
                    on(device(), Tensor::full(parameter.shape(), 2.0f, kFp32));
                add_gain_gradient(on(device(), dgain), on(device(), parameter), config, dparameter,
                                  on(device(), lambda));
                const Tensor got = on_cpu(dparameter);
                const std::vector<double> d = to_doubles(dgain);
                const auto loss = [&] {
                    const std::vector<double> g = effective_here();
                    double sum = 0.0;
                    for (std::size_t i = 0; i < g.size(); ++i) sum += g[i] * d[i];
                    return sum;
                };
                for (std::int64_t i = 0; i < parameter.numel(); i += 1 + parameter.numel() / 8) {
                    float& value = parameter.data<float>()[i];
                    const float kept = value, step = 1.0f / 256;
                    const bool near_zero = config.gain_form == Form::kLinear &&
                                           std::abs(1.0f + kept / 0.25f) < 0.2f && power < 1.0;
                    if (near_zero) continue;  // where the curve is no line
                    value = kept + step;
                    const double above = loss();
                    value = kept - step;
                    const double below = loss();
                    value = kept;
                    const double want = 2.0 + (above - below) / (2.0 * step);
                    EXPECT_NEAR(got.data<float>()[i], want, 5e-4 * (10.0 + std::abs(want))) << i;
                }
            }
        }
    }
}

// Held gains and gains to the power 0 learn nothing.
TEST_P(GainTest, HeldGainsGetNoGradient) {
    const QkNormConfig config = config_of(Gain::kPerHeadScalar, Form::kLinear);
    const Tensor parameter = on(device(), floats({-3.0f, 0x1p-21f, 4.0f}, {kHeads}));
    const Tensor dgain = on(device(), Tensor::full({kHeads, kDim}, 1.0f, kFp32));
    for (const float power : {0.0f, 0.5f, 1.0f}) {
        const Tensor dparameter = on(device(), Tensor::zeros({kHeads}, kFp32));
        add_gain_gradient(dgain, parameter, config, dparameter, on(device(), floats({power}, {1})));
        const double last = power == 0.5f ? 0.25 * kDim : power * kDim;
        const double others = power == 1.0f ? kDim : 0.0;
        EXPECT_TRUE(near(on_cpu(dparameter), {others, others, last}, 1e-6, 0.0)) << power;
    }
}

TEST(GainRuleTest, TheFirstParameterMakesTheFirstGain) {
    for (const Gain gain : kGains) {
        for (QkNormConfig config :
             {config_of(gain, Form::kLinear), config_of(gain, Form::kLinear, 0.03125, 1.0),
              config_of(gain, Form::kExponential)}) {
            for (const double init : {1.0, 10.0, 100.0}) {
                config.gain_init = init;
                const Tensor parameter = Tensor::full(
                    shape_of(gain), static_cast<float>(initial_gain_parameter(config)), kFp32);
                const Tensor got = effective_gain(parameter, config, kHeads, kDim);
                EXPECT_TRUE(near(got,
                                 std::vector<double>(static_cast<std::size_t>(got.numel()), init),
                                 1e-6, 0.0));
            }
        }
    }
}

TEST(GainRuleTest, KernelsTakeLinearChannelsAsTheyAre) {
    for (const Gain gain : kGains) {
        const bool channels = gain == Gain::kPerHeadChannel || gain == Gain::kSharedChannel;
        EXPECT_EQ(is_kernel_gain(config_of(gain, Form::kLinear, 1.0, 1.0)), channels);
        EXPECT_FALSE(is_kernel_gain(config_of(gain, Form::kLinear, 0.5)));
        EXPECT_FALSE(is_kernel_gain(config_of(gain, Form::kExponential)));
    }
    EXPECT_TRUE(is_kernel_gain(config_of(Gain::kNone, Form::kLinear)));
    EXPECT_FALSE(effective_gain({}, config_of(Gain::kNone, Form::kLinear), 2, 64).defined());
}

TEST(GainRuleTest, ShapesThatDoNotFitAreErrors) {
    const QkNormConfig config = config_of(Gain::kPerHeadScalar, Form::kLinear);
    EXPECT_THROW(effective_gain(Tensor::zeros({4}, kFp32), config, 3, 64), Error);
    EXPECT_THROW(effective_gain({}, config, 3, 64), Error);
    EXPECT_THROW(add_gain_gradient(Tensor::zeros({64}, kFp32), Tensor::zeros({3}, kFp32), config,
                                   Tensor::zeros({3}, kFp32)),
                 Error);
    EXPECT_THROW(add_gain_gradient(Tensor::zeros({3, 64}, kFp32), Tensor::zeros({3}, kFp32), config,
                                   Tensor::zeros({1}, kFp32)),
                 Error);
}

}  // namespace
}  // namespace evenkeel::testing
