// What settings of attention are refused, and which earn a warning.
#include "attention/attention_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace evenkeel {
namespace {

using Kind = QkNormConfig::Kind;
using Scope = QkNormConfig::Scope;
using Gain = QkNormConfig::Gain;
using Form = QkNormConfig::GainForm;
using Change = std::function<void(AttentionConfig&)>;

AttentionConfig changed(const Change& change) {
    AttentionConfig config;
    change(config);
    return config;
}

std::string complaint(const Change& change) {
    try {
        changed(change).validate(1);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        return error.what();
    }
    return "accepted";
}

struct Refusal {
    const char* name;
    Change change;
    const char* message;  // a part of it
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

const Refusal kRefusals[] = {
    {"FullWidthLayerNorm",
     [](auto& c) { c.qk_norm.scope = Scope::kFullWidth, c.qk_norm.kind = Kind::kLayerNorm; },
     "qk_norm.scope: got full_width, want head"},
    {"FullWidthUnitLength",
     [](auto& c) { c.qk_norm.scope = Scope::kFullWidth, c.qk_norm.kind = Kind::kL2; },
     "qk_norm.scope: got full_width, want head"},
    {"FullWidthPlain",
     [](auto& c) { c.qk_norm.scope = Scope::kFullWidth, c.qk_norm.kind = Kind::kNone; },
     "qk_norm.scope: got full_width, want head"},
    {"FullWidthFactorPerHead",
     [](auto& c) { c.qk_norm.scope = Scope::kFullWidth, c.qk_norm.gain = Gain::kPerHeadScalar; },
     "qk_norm.gain: got a factor of the logits"},
    {"FullWidthFactor",
     [](auto& c) { c.qk_norm.scope = Scope::kFullWidth, c.qk_norm.gain = Gain::kScalar; },
     "qk_norm.gain: got a factor of the logits"},
    {"ExponentialChannels", [](auto& c) { c.qk_norm.gain_form = Form::kExponential; },
     "qk_norm.gain_form: got exponential, want linear"},
    {"ExponentialWithOffset",
     [](auto& c) {
         c.qk_norm.gain = Gain::kPerHeadScalar, c.qk_norm.gain_form = Form::kExponential;
         c.qk_norm.gain_offset = 1.0;
     },
     "qk_norm.gain_offset: got 1, want 0"},
    {"ExponentialWithUnit",
     [](auto& c) {
         c.qk_norm.gain = Gain::kPerHeadScalar, c.qk_norm.gain_form = Form::kExponential;
         c.qk_norm.gain_unit = 0.5;
     },
     "qk_norm.gain_unit: got 0.5, want 1"},
    {"ExponentialFromZero",
     [](auto& c) {
         c.qk_norm.gain = Gain::kPerHeadScalar, c.qk_norm.gain_form = Form::kExponential;
         c.qk_norm.gain_init = 0.0;
     },
     "qk_norm.gain_init: got 0, want a positive number of at most gain_limit"},
    {"ExponentialBeyondItsLimit",
     [](auto& c) {
         c.qk_norm.gain = Gain::kScalar, c.qk_norm.gain_form = Form::kExponential;
         c.qk_norm.gain_init = 101.0;
     },
     "qk_norm.gain_init: got 101, want a positive number of at most gain_limit"},
    {"NoUnit", [](auto& c) { c.qk_norm.gain_unit = 0.0; }, "qk_norm.gain_unit: got 0"},
    {"NoLimit", [](auto& c) { c.qk_norm.gain_limit = -1.0; }, "qk_norm.gain_limit: got -1"},
    {"OffsetNan", [](auto& c) { c.qk_norm.gain_offset = NAN; }, "qk_norm.gain_offset: got nan"},
    {"SoftcapNegative", [](auto& c) { c.softcap = -50.0; }, "attention.softcap: got -50"},
    {"SoftcapTooSmall", [](auto& c) { c.softcap = 1e-9; }, "attention.softcap: got 1e-09"},
    {"SoftcapTooLarge", [](auto& c) { c.softcap = 1e7; }, "attention.softcap: got 1e+07"},
    {"UnitBelowFp32", [](auto& c) { c.qk_norm.gain_unit = 1e-60; }, "qk_norm.gain_unit: got 1e-60"},
    {"UnitBeyondFp32", [](auto& c) { c.qk_norm.gain_unit = 1e60; }, "qk_norm.gain_unit: got 1e+60"},
    {"InitBeyondFp32", [](auto& c) { c.qk_norm.gain_init = 1e60; }, "qk_norm.gain_init: got 1e+60"},
    {"SinkBeyondFp32",
     [](auto& c) { c.sink = AttentionConfig::Sink::kLearned, c.sink_init = 1e39; },
     "attention.sink_init: got 1e+39"},
    {"SoftcapInfinite", [](auto& c) { c.softcap = INFINITY; }, "attention.softcap: got inf"},
    {"ScaleTooSmall", [](auto& c) { c.softmax_scale = 1e-40; }, "attention.softmax_scale: got"},
    {"SinkWithoutSink", [](auto& c) { c.sink_init = 1.0; }, "attention.sink_init: got 1, want 0"},
    {"SinkOffByOneWithInit",
     [](auto& c) { c.sink = AttentionConfig::Sink::kOffByOne, c.sink_init = 1.0; },
     "attention.sink_init: got 1, want 0"},
    {"SinkNan", [](auto& c) { c.sink = AttentionConfig::Sink::kLearned, c.sink_init = NAN; },
     "attention.sink_init: got nan"},
    {"ClipNegative", [](auto& c) { c.qk_clip_threshold = -1.0; },
     "attention.qk_clip_threshold: got -1"},
    {"ClipOfSharedGains",
     [](auto& c) { c.qk_clip_threshold = 100.0, c.qk_norm.gain = Gain::kSharedChannel; },
     "qk_clip_threshold: got 100, want 0"},
    {"ClipOfFactors",
     [](auto& c) { c.qk_clip_threshold = 100.0, c.qk_norm.gain = Gain::kPerHeadScalar; },
     "qk_clip_threshold: got 100, want 0"},
    {"ClipWithoutGains", [](auto& c) { c.qk_clip_threshold = 100.0, c.qk_norm.gain = Gain::kNone; },
     "qk_clip_threshold: got 100, want 0"},
    {"ClipOfFullWidth",
     [](auto& c) { c.qk_clip_threshold = 100.0, c.qk_norm.scope = Scope::kFullWidth; },
     "qk_clip_threshold: got 100, want 0"},
};

class AttentionConfigRefusals : public ::testing::TestWithParam<Refusal> {};
INSTANTIATE_TEST_SUITE_P(,
                         AttentionConfigRefusals,
                         ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AttentionConfigRefusals, NameTheKeyAndTheReason) {
    const std::string text = complaint(GetParam().change);
    EXPECT_NE(text.find(GetParam().message), std::string::npos) << text;
    EXPECT_NE(text.find("[attention] model.attention."), std::string::npos) << text;
}

TEST(AttentionConfigTest, AcceptsWhatGoesTogether) {
    const Change sensible[] = {
        [](auto&) {},
        [](auto& c) { c.qk_norm.kind = Kind::kNone, c.softcap = 50.0; },
        [](auto& c) { c.sink = AttentionConfig::Sink::kLearned, c.sink_init = -2.0; },
        [](auto& c) { c.qk_norm.scope = Scope::kFullWidth; },
        [](auto& c) { c.qk_norm.kind = Kind::kNone, c.qk_clip_threshold = 100.0; },
        [](auto& c) { c.qk_norm.gain_offset = 1.0, c.qk_clip_threshold = 100.0; },
        [](auto& c) {
            c.qk_norm.kind = Kind::kL2, c.qk_norm.gain = Gain::kPerHeadScalar;
            c.qk_norm.gain_form = Form::kExponential, c.qk_norm.gain_init = 100.0;
        },
        // Without gains nothing is read of what they would be.
        [](auto& c) { c.qk_norm.gain = Gain::kNone, c.qk_norm.gain_unit = -1.0; },
    };
    for (const Change& change : sensible) EXPECT_EQ(complaint(change), "accepted");
}

struct Warning {
    const char* name;
    Change change;
    const char* message;  // a part of it; "": none
    const char* anchor = "";
};
void PrintTo(const Warning& warning, std::ostream* out) { *out << warning.name; }

const Warning kWarnings[] = {
    {"Default", [](auto&) {}, ""},
    {"Plain", [](auto& c) { c.qk_norm.kind = Kind::kNone, c.qk_norm.eps = 1e-12; }, ""},
    {"FullWidth", [](auto& c) { c.qk_norm.scope = Scope::kFullWidth; },
     "model.attention.qk_norm.scope: full_width", "statistic-over-all-heads"},
    {"ScaleKept",
     [](auto& c) { c.qk_norm.kind = Kind::kL2, c.head_dim = 64, c.softmax_scale = 0.125; },
     "model.attention.softmax_scale: got 0.125", "1sqrtd-kept-with-unit-length-vectors"},
    {"ScaleNearlyKept",
     [](auto& c) { c.qk_norm.kind = Kind::kL2, c.head_dim = 128, c.softmax_scale = 0.0884; },
     "model.attention.softmax_scale: got 0.0884", "1sqrtd-kept-with-unit-length-vectors"},
    {"ScaleBelowTheUsual",
     [](auto& c) {
         c.qk_norm.kind = Kind::kL2, c.head_dim = 32, c.softmax_scale = 0.1;
         c.qk_norm.gain = Gain::kPerHeadScalar, c.qk_norm.gain_init = 10.0;
     },
     "model.attention.softmax_scale: got 0.1", "1sqrtd-kept-with-unit-length-vectors"},
    {"ScaleOfItsOwn", [](auto& c) { c.qk_norm.kind = Kind::kL2, c.softmax_scale = 8.0; }, ""},
    {"ScaleKeptWithRms", [](auto& c) { c.head_dim = 64, c.softmax_scale = 0.125; }, ""},
    {"GainMissing", [](auto& c) { c.qk_norm.kind = Kind::kL2, c.qk_norm.gain = Gain::kNone; },
     "model.attention.qk_norm.gain: none", "gain-missing"},
    {"GainsOfZero", [](auto& c) { c.qk_norm.gain_init = 0.0; },
     "model.attention.qk_norm.gain_init: got 0", "gain-missing"},
    {"UnitLengthAlone", [](auto& c) { c.qk_norm.kind = Kind::kL2; },
     "model.attention.qk_norm.gain_init: got 1, with which logits start between -1 and 1",
     "gain-missing"},
    {"UnitLengthWithAGain",
     [](auto& c) {
         c.qk_norm.kind = Kind::kL2, c.qk_norm.gain = Gain::kPerHeadScalar;
         c.qk_norm.gain_init = 10.0;
     },
     ""},
    {"GainsNearZero", [](auto& c) { c.qk_norm.gain_init = 1e-20; },
     "model.attention.qk_norm.gain_init: got 1e-20", "gain-missing"},
    {"GainMissingAfterRms", [](auto& c) { c.qk_norm.gain = Gain::kNone, c.head_dim = 64; },
     "model.attention.qk_norm.gain: none leaves logits between -8 and 8", "gain-missing"},
    {"GainMissingAfterLayerNorm",
     [](auto& c) {
         c.qk_norm.kind = Kind::kLayerNorm, c.qk_norm.gain = Gain::kNone, c.head_dim = 64;
     },
     "model.attention.qk_norm.gain: none leaves logits between -8 and 8", "gain-missing"},
    {"GainInTheScale",
     [](auto& c) {
         c.qk_norm.kind = Kind::kL2, c.qk_norm.gain = Gain::kNone, c.softmax_scale = 10.0;
     },
     ""},
    {"EpsZeroInHalf", [](auto& c) { c.qk_norm.eps = 1e-8; }, "model.attention.qk_norm.eps: got",
     "eps-too-small"},
    {"EpsInHalf", [](auto& c) { c.qk_norm.eps = 3e-8; }, ""},
    {"EpsLarge", [](auto& c) { c.qk_norm.eps = 0.0078; }, "model.attention.qk_norm.eps: got",
     "eps-too-small"},
};

class AttentionConfigWarnings : public ::testing::TestWithParam<Warning> {};
INSTANTIATE_TEST_SUITE_P(,
                         AttentionConfigWarnings,
                         ::testing::ValuesIn(kWarnings),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AttentionConfigWarnings, AreOneSentenceThatSaysWhereToReadMore) {
    const AttentionConfig config = changed(GetParam().change);
    EXPECT_NO_THROW(config.validate(1));
    const auto texts = config.warnings();
    const std::string want = GetParam().message;
    if (want.empty()) {
        EXPECT_TRUE(texts.empty()) << texts.front();
        return;
    }
    ASSERT_EQ(texts.size(), 1u);
    EXPECT_EQ(texts.front().find(want), 0u) << texts.front();
    EXPECT_TRUE(texts.front().ends_with(concat(" (docs/qk_norm.md#", GetParam().anchor, ")")))
        << texts.front();
}

TEST(AttentionConfigTest, TheOrderOfNormAndRotationIsNoSetting) {
    for (const char* json :
         {R"({"qk_norm": {"order": "rope_then_norm"}})", R"({"qk_norm": {"rope_then_norm": true}})",
          R"({"rope_then_norm": true})"}) {
        AttentionConfig config;
        try {
            parse_config([&](ConfigVisitor& v) { config.visit_fields(v); }, json, "a.json");
            ADD_FAILURE() << json << ": accepted";
        } catch (const Error& error) {
            const std::string text = error.what();
            EXPECT_NE(text.find("the norm always comes before the rotation"), std::string::npos)
                << text;
        }
    }
}

TEST(AttentionConfigTest, TriedNamesThatAreMistakesSayWhy) {
    for (const char* json :
         {R"({"qk_norm": {"normalize_v": true}})", R"({"normalize_v": true})",
          R"({"logit_clamp": 50})", R"({"v_norm": {"kind": "rms"}})", R"({"clamp": 50})"}) {
        AttentionConfig config;
        try {
            parse_config([&](ConfigVisitor& v) { config.visit_fields(v); }, json, "a.json");
            ADD_FAILURE() << json << ": accepted";
        } catch (const Error& error) {
            const std::string text = error.what();
            EXPECT_NE(text.find("no setting: "), std::string::npos) << text;
            const bool clamps = std::string(json).find("clamp") != std::string::npos;
            const char* anchor = clamps ? "clamped-logits" : "v-normalised";
            EXPECT_NE(text.find(concat("(docs/qk_norm.md#", anchor, ")")), std::string::npos)
                << text;
            EXPECT_EQ(text.find("did you mean"), std::string::npos) << text;
        }
    }
}

}  // namespace
}  // namespace evenkeel
