// What the names of model.method stand for, and how they go together with single settings.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "model/method.h"

namespace evenkeel {
namespace {

using Kind = QkNormConfig::Kind;
using Gain = QkNormConfig::Gain;
using Form = QkNormConfig::GainForm;

ModelConfig config_of(const std::string& method) {
    ModelConfig config;
    apply_method(method, config);
    return config;
}

ModelConfig read(const std::string& json, const std::vector<std::string>& overrides = {}) {
    ModelConfig config;
    const VisitFields visit = [&](ConfigVisitor& v) { config.visit_fields(v); };
    parse_config(visit, json, "a.json");
    for (const std::string& assignment : overrides) apply_override(visit, assignment);
    return config;
}

TEST(MethodsTest, EachHasANameOfItsOwnASummaryAndASource) {
    std::set<std::string> names;
    for (const Method* method : methods()) {
        EXPECT_TRUE(names.insert(method->name).second) << method->name;
        EXPECT_GT(std::string(method->summary).size(), 10u) << method->name;
        EXPECT_GT(std::string(method->source).size(), 5u) << method->name;
    }
}

TEST(MethodsTest, EachIsAWorkableModel) {
    for (const Method* method : methods()) {
        ModelConfig config;
        config.method = method->name;
        method->configure(config);
        for (const std::int64_t tensor_parallel : {1, 2, 4, 8}) {
            EXPECT_NO_THROW(config.validate(tensor_parallel)) << method->name;
        }
    }
}

TEST(MethodsTest, SetWhatTheirPapersSay) {
    EXPECT_EQ(config_of("plain").attention.qk_norm.kind, Kind::kNone);
    EXPECT_EQ(config_of("rms").attention.qk_norm.gain, Gain::kPerHeadChannel);
    EXPECT_EQ(config_of("rms_shared").attention.qk_norm.gain, Gain::kSharedChannel);
    EXPECT_EQ(config_of("rms_zero_centred").attention.qk_norm.gain_offset, 1.0);
    EXPECT_EQ(config_of("layer_norm").attention.qk_norm.kind, Kind::kLayerNorm);
    EXPECT_EQ(config_of("full_width_rms").attention.qk_norm.scope, QkNormConfig::Scope::kFullWidth);
    EXPECT_EQ(config_of("henry").attention.qk_norm.gain, Gain::kPerHeadScalar);
    EXPECT_EQ(config_of("henry_module").attention.qk_norm.gain, Gain::kScalar);
    const AttentionConfig cosine = config_of("cosine").attention;
    EXPECT_EQ(cosine.qk_norm.gain_form, Form::kExponential);
    EXPECT_EQ(cosine.qk_norm.gain_init, 10.0);
    EXPECT_EQ(cosine.qk_norm.gain_limit, 100.0);
    EXPECT_EQ(cosine.logit_scale(), 1.0);
    EXPECT_EQ(config_of("softcap").attention.softcap, 50.0);
    EXPECT_EQ(config_of("sink").attention.sink, AttentionConfig::Sink::kLearned);
    EXPECT_EQ(config_of("off_by_one").attention.sink, AttentionConfig::Sink::kOffByOne);
    EXPECT_EQ(config_of("qk_clip").attention.qk_clip_threshold, 100.0);
    EXPECT_EQ(config_of("qk_clip").attention.qk_norm.kind, Kind::kNone);
}

// From the lengths of the reference code, and those of language models.
TEST(MethodsTest, FirstGainOfHenryIsTheLogarithmOfThePairs) {
    for (const auto& [length, gain] : {std::pair<std::int64_t, double>{72, 12.3197},
                                       {75, 12.4383},
                                       {79, 12.5892},
                                       {512, 17.997},
                                       {2048, 21.999},
                                       {32768, 30.0}}) {
        for (const char* name : {"henry", "henry_module"}) {
            ModelConfig config;
            config.max_seq_len = length;
            apply_method(name, config);
            EXPECT_NEAR(config.attention.qk_norm.gain_init, gain, 6e-4) << name << " " << length;
            EXPECT_EQ(config.attention.logit_scale(), 1.0);
        }
    }
}

TEST(MethodsTest, AreReadBeforeTheSettingsBesideThem) {
    // In a file, wherever it stands.
    const ModelConfig file =
        read(R"({"attention": {"qk_norm": {"gain_init": 5}}, "method": "henry"})");
    EXPECT_EQ(file.attention.qk_norm.kind, Kind::kL2);
    EXPECT_EQ(file.attention.qk_norm.gain_init, 5.0);
    // On the command line, in order.
    const ModelConfig line = read("{}", {"method=cosine", "attention.qk_norm.gain_init=20"});
    EXPECT_EQ(line.attention.qk_norm.gain_form, Form::kExponential);
    EXPECT_EQ(line.attention.qk_norm.gain_init, 20.0);
    // A method replaces what another has set, and single settings too.
    const ModelConfig replaced = read(R"({"method": "softcap"})", {"method=henry"});
    EXPECT_EQ(replaced.attention.softcap, 0.0);
    EXPECT_EQ(replaced.attention.qk_norm.kind, Kind::kL2);
    EXPECT_EQ(replaced.method, "henry");
}

TEST(MethodsTest, WhatFollowsFromSizesFollowsThem) {
    const double g_of_64 = std::log2(64.0 * 64.0 - 64.0);
    EXPECT_EQ(read(R"({"method": "henry", "max_seq_len": 64})").attention.qk_norm.gain_init,
              g_of_64);
    EXPECT_EQ(read(R"({"method": "henry"})", {"max_seq_len=64"}).attention.qk_norm.gain_init,
              g_of_64);
    EXPECT_EQ(read("{}", {"max_seq_len=64", "method=henry"}).attention.qk_norm.gain_init, g_of_64);
    // But not what has been chosen.
    EXPECT_EQ(read(R"({"method": "henry", "attention": {"qk_norm": {"gain_init": 5}}})",
                   {"max_seq_len=64"})
                  .attention.qk_norm.gain_init,
              5.0);
}

TEST(MethodsTest, ResolvedSettingsReadBackEqual) {
    for (const Method* method : methods()) {
        ModelConfig config = read("{}", {concat("method=", method->name), "max_seq_len=64",
                                         "attention.qk_norm.eps=1e-5"});
        const std::string text = to_json([&](ConfigVisitor& v) { config.visit_fields(v); });
        ModelConfig again = read(text);
        EXPECT_EQ(to_json([&](ConfigVisitor& v) { again.visit_fields(v); }), text) << method->name;
    }
}

TEST(MethodsTest, WrongNameListsTheRightOnes) {
    try {
        read(R"({"method": "henri"})");
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        const std::string text = error.what();
        EXPECT_NE(
            text.find("model.method: got \"henri\", did you mean henry? want one of plain, rms, "),
            std::string::npos)
            << text;
        for (const Method* method : methods()) {
            EXPECT_NE(text.find(method->name), std::string::npos) << method->name;
        }
    }
}

TEST(MethodsTest, QkClipDoesNotGoWithRulesThatSetTheScaleOfWeights) {
    ModelConfig config = config_of("qk_clip");
    config.sigma_reparam = true;
    EXPECT_THROW(config.validate(1), Error);
    config.sigma_reparam = false;
    config.architecture = Architecture::kNgpt;
    EXPECT_THROW(config.validate(1), Error);
}

}  // namespace
}  // namespace evenkeel
