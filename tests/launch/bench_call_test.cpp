// evenkeel bench attention and evenkeel bench step: that they compute what they measure.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "framework/json.h"
#include "framework/storage/safetensors.h"
#include "tests/launch/command_line.h"

namespace evenkeel {
namespace {

class BenchCommandTest : public ::testing::Test {
  protected:
    nlohmann::json json_of(const std::string& arguments) const {
        const testing::Outcome outcome = testing::run_evenkeel("bench " + arguments + " --json");
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        return nlohmann::json::parse(outcome.output);
    }
    testing::TinyRun tiny_;
};

constexpr const char* kSmallAttention =
    "attention --tokens 40 --heads 4 --kv-heads 2 --head-dim 32 ";

TEST_F(BenchCommandTest, OneShapeOfAttentionIsMeasured) {
    const auto result = json_of(std::string(kSmallAttention) + "--seconds 0.01");
    EXPECT_GT(result.at("fastest").get<double>(), 0.0);
    EXPECT_LE(result.at("fastest").get<double>(), result.at("seconds").get<double>());
    EXPECT_GE(result.at("calls").get<int>(), 1);
    EXPECT_FALSE(result.contains("losses"));
}

// Five tensors like q of 2 MiB each, five like k of 1 MiB, and some more; the logits of all pairs would be 64 MiB.
TEST_F(BenchCommandTest, TheMemoryOfAttentionIsSeen) {
    const auto result =
        json_of("attention --batch 2 --tokens 2048 --heads 4 --kv-heads 2 --seconds 0");
    const double bytes = result.at("peak_bytes").get<double>();
    EXPECT_GT(bytes, 14.0 * (1 << 20));
    EXPECT_LT(bytes, 64.0 * (1 << 20));
}

TEST_F(BenchCommandTest, AttentionOfAFilesInputsIsWritten) {
    // All queries and keys alike: each row of out is the mean of the values up to its own.
    const std::string inputs = tiny_.directory.file("in.safetensors");
    const std::string outputs = tiny_.directory.file("out.safetensors");
    const Shape query = {1, 2, 1, 32}, gain = {1, 32};
    const auto full = [](const Shape& shape, float value) {
        return Tensor::full(shape, value, DType::kFloat32);
    };
    const Tensor v = full(query, 1.0f);
    std::fill_n(v.data<float>() + 32, 32, 3.0f);
    write_safetensors(inputs, {{"q", full(query, 0.0f)},
                               {"k", full(query, 0.0f)},
                               {"v", v},
                               {"dout", full(query, 1.0f)},
                               {"q_gain", full(gain, 1.0f)},
                               {"k_gain", full(gain, 1.0f)}});
    const std::string shape = "attention --tokens 2 --heads 1 --kv-heads 1 --head-dim 32 ";
    const std::string files = "--inputs " + inputs + " --outputs " + outputs;
    json_of(shape + "--type fp32 --seconds 0 " + files);
    const SafetensorsReader reader(outputs);
    const Tensor out = reader.read("out"), dv = reader.read("dv");
    EXPECT_FLOAT_EQ(out.data<float>()[0], 1.0f);
    EXPECT_FLOAT_EQ(out.data<float>()[32], 2.0f);
    EXPECT_FLOAT_EQ(dv.data<float>()[0], 1.5f);
    EXPECT_FLOAT_EQ(dv.data<float>()[32], 0.5f);
    EXPECT_EQ(reader.info("dq_gain").shape, gain);
    testing::expect_refusal(testing::run_evenkeel("bench " + std::string(kSmallAttention) + files),
                            {2, {"tensor q", "its shape"}});
}

TEST_F(BenchCommandTest, StepsOfAConfigurationAreMeasured) {
    const auto result = json_of("step --steps 3 --config " + tiny_.config);
    EXPECT_EQ(result.at("calls"), 3);
    const auto losses = result.at("losses").get<std::vector<double>>();
    ASSERT_EQ(losses.size(), 4u) << "with the step that warms up";
    EXPECT_NEAR(losses[0], std::log(256.0), 0.3);
    EXPECT_LT(losses[3], losses[0]) << "all steps have the same tokens";
    EXPECT_GT(result.at("peak_bytes").get<double>(), 0.0);
    const double rate = result.at("tokens_per_second").get<double>();
    EXPECT_NEAR(rate * result.at("seconds").get<double>(), 2.0 * 32.0, 1e-6);
    EXPECT_GT(result.at("tflops_per_rank").get<double>(), 0.0);
    EXPECT_FALSE(std::filesystem::exists(tiny_.run)) << "nothing is written";
}

TEST_F(BenchCommandTest, StepsTakeAFilesTokens) {
    const Tensor tokens = Tensor::zeros({2, 33}, DType::kInt32);
    const std::string file = tiny_.directory.file("tokens.safetensors");
    write_safetensors(file, {{"tokens", tokens}});
    const std::string random = "step --steps 20 --config " + tiny_.config;
    const std::string arguments = random + " --tokens " + file;
    const auto last = [&](const std::string& run) {
        return json_of(run).at("losses").back().get<double>();
    };
    EXPECT_LT(last(arguments), 0.7 * last(random)) << "zeros are sooner known";
    testing::expect_refusal(
        testing::run_evenkeel("bench " + arguments + " --set trainer.seq_len=16"),
        {2, {"2 sequences of 33 tokens", "want 2 of 17"}});
}

}  // namespace
}  // namespace evenkeel
