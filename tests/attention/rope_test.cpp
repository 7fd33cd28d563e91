#include "attention/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

namespace evenkeel {
namespace {

using Scaling = RopeConfig::Scaling;
using Values = std::vector<std::pair<int, double>>;  // pair index, frequency

void expect_frequencies(const RopeConfig& config, std::int64_t head_dim, const Values& want) {
    const std::vector<double> got = rope_frequencies(config, head_dim);
    ASSERT_EQ(got.size(), static_cast<std::size_t>(head_dim / 2));
    for (const auto& [pair, value] : want) {
        EXPECT_NEAR(got[pair] / value, 1.0, 1e-13) << "pair " << pair << ": got " << got[pair];
    }
}

// Calls f and returns the message of the kConfig error that it throws.
template <typename F>
std::string config_error(F&& f) {
    try {
        f();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
}

TEST(RopeTest, FrequenciesAreInversePowersOfTheta) {
    expect_frequencies({}, 64, {{0, 1.0}, {8, 0.1}, {16, 0.01}, {24, 0.001}});
    RopeConfig config;
    config.theta = 5e5;
    expect_frequencies(config, 128, {{10, 0.12868737343265052}, {63, 2.455140791131609e-06}});
}

TEST(RopeTest, LinearScalingDividesEveryFrequency) {
    RopeConfig config;
    config.scaling = Scaling::kLinear;
    config.factor = 4.0;
    expect_frequencies(config, 64, {{0, 0.25}, {8, 0.025}, {16, 0.0025}});
}

// Evaluated apart from this code from the three branches on the wavelength: theta 500000, D 128.
TEST(RopeTest, Llama3ScalingMatchesHandValues) {
    RopeConfig config;
    config.theta = 5e5;
    config.scaling = Scaling::kLlama3;
    config.factor = 8.0;
    config.low_freq_factor = 1.0;
    config.high_freq_factor = 4.0;
    config.original_max_position = 8192;
    expect_frequencies(config, 128,
                       {{0, 1.0},
                        {28, 0.003211445994752591},
                        {29, 0.002166570763503359},
                        {31, 0.0008567514129196321},
                        {34, 0.0001785078127679964},
                        {35, 9.556212353964683e-05},
                        {63, 3.068925988914511e-07}});
}

// Evaluated apart from this code: theta 10000, D 64, factor 16 over 4096; the ramp runs over pairs 10 to
// 23 (10.47 and 22.51 rounded outwards).
TEST(RopeTest, YarnScalingMatchesHandValues) {
    RopeConfig config;
    config.scaling = Scaling::kYarn;
    config.factor = 16.0;
    config.original_max_position = 4096;
    expect_frequencies(config, 64,
                       {{0, 1.0},
                        {9, 0.07498942093324558},
                        {10, 0.05623413251903491},
                        {11, 0.039128569789286714},
                        {15, 0.00852684377296741},
                        {22, 0.00023938376673600874},
                        {23, 8.334508951020775e-05},
                        {31, 8.334508951020775e-06}});
    EXPECT_NEAR(rope_magnitude(config), 1.2772588722239782, 1e-15);
    const RopeTable table = make_rope_table(config, 64, 0, 1);
    EXPECT_FLOAT_EQ(table.cos.data<float>()[0], 1.2772588722239782f);
    config.attention_factor = 1.5;
    EXPECT_EQ(rope_magnitude(config), 1.5);
    config.scaling = Scaling::kNone;
    EXPECT_EQ(rope_magnitude(config), 1.0);
}

TEST(RopeTest, FactorOneChangesNothing) {
    for (const Scaling scaling : {Scaling::kLinear, Scaling::kLlama3, Scaling::kYarn}) {
        RopeConfig config;
        const std::vector<double> plain = rope_frequencies(config, 64);
        config.scaling = scaling;
        const std::vector<double> scaled = rope_frequencies(config, 64);
        for (std::size_t p = 0; p < plain.size(); ++p) {
            EXPECT_NEAR(scaled[p] / plain[p], 1.0, 1e-15) << "pair " << p;
        }
        EXPECT_EQ(rope_magnitude(config), 1.0);
    }
}

TEST(RopeTest, TableIsCosAndSinOfPositionTimesFrequency) {
    RopeConfig config;
    config.rotary_fraction = 0.5;
    const RopeTable table = make_rope_table(config, 64, 5, 3);
    EXPECT_EQ(table.rotary_dim, 32);
    EXPECT_EQ(table.first, 5);
    EXPECT_EQ(table.count, 3);
    ASSERT_EQ(table.cos.shape(), (Shape{3, 16}));
    ASSERT_EQ(table.sin.shape(), (Shape{3, 16}));
    for (int t = 0; t < 3; ++t) {
        for (int p = 0; p < 16; ++p) {
            const double angle = (5 + t) * std::pow(10000.0, -p / 16.0);
            EXPECT_NEAR(table.cos.data<float>()[t * 16 + p], std::cos(angle), 6e-8);
            EXPECT_NEAR(table.sin.data<float>()[t * 16 + p], std::sin(angle), 6e-8);
        }
    }
}

// An angle formed in float is off by up to 0.03 here.
TEST(RopeTest, PositionOneMillionMatchesExtendedPrecision) {
    for (const double theta : {1e4, 5e5, 1e6}) {
        RopeConfig config;
        config.theta = theta;
        const RopeTable table = make_rope_table(config, 128, 999'999, 2);
        for (int t = 0; t < 2; ++t) {
            for (int p = 0; p < 64; ++p) {
                const long double angle =
                    (999'999.0L + t) * powl(static_cast<long double>(theta), -p / 64.0L);
                EXPECT_NEAR(table.cos.data<float>()[t * 64 + p], double(cosl(angle)), 6e-8)
                    << "theta " << theta << ", pair " << p;
                EXPECT_NEAR(table.sin.data<float>()[t * 64 + p], double(sinl(angle)), 6e-8)
                    << "theta " << theta << ", pair " << p;
            }
        }
    }
}

TEST(RopeTest, FractionZeroMakesNoTable) {
    RopeConfig config;
    config.rotary_fraction = 0.0;
    const RopeTable table = make_rope_table(config, 33, 0, 100);
    EXPECT_EQ(table.rotary_dim, 0);
    EXPECT_FALSE(table.cos.defined());
    EXPECT_FALSE(table.sin.defined());
}

TEST(RopeTest, RejectsOddRotaryWidths) {
    RopeConfig config;
    EXPECT_NE(config_error([&] { config.rotary_dim(33); }).find("head_dim 33"), std::string::npos);
    config.rotary_fraction = 0.25;
    EXPECT_EQ(config.rotary_dim(80), 20);
    EXPECT_NE(config_error([&] { config.rotary_dim(36); }).find("rope.rotary_fraction: got 0.25"),
              std::string::npos);
    config.rotary_fraction = 0.3;  // 19.2 channels
    config_error([&] { config.rotary_dim(64); });
    for (const double fraction : {-0.5, 1.5, std::nan("")}) {
        config.rotary_fraction = fraction;
        config_error([&] { config.rotary_dim(64); });
    }
}

TEST(RopeTest, RejectsImpossibleScaling) {
    const auto error_of = [](auto change) {
        RopeConfig config;
        change(config);
        return config_error([&] { rope_frequencies(config, 64); });
    };
    EXPECT_NE(error_of([](RopeConfig& c) { c.theta = 0.0; }).find("rope.theta"), std::string::npos);
    EXPECT_NE(error_of([](RopeConfig& c) {
                  c.scaling = Scaling::kLinear, c.factor = 0.5;
              }).find("rope.factor"),
              std::string::npos);
    EXPECT_NE(error_of([](RopeConfig& c) {
                  c.scaling = Scaling::kLlama3, c.high_freq_factor = 1.0;
              }).find("rope.high_freq_factor"),
              std::string::npos);
    EXPECT_NE(error_of([](RopeConfig& c) {
                  c.scaling = Scaling::kYarn, c.beta_fast = 0.5;
              }).find("rope.beta_fast"),
              std::string::npos);
    EXPECT_NE(error_of([](RopeConfig& c) {
                  c.scaling = Scaling::kYarn, c.original_max_position = 0;
              }).find("rope.original_max_position"),
              std::string::npos);
}

}  // namespace
}  // namespace evenkeel
