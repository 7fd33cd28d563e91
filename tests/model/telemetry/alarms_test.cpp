#include "model/telemetry/alarms.h"

#include <gtest/gtest.h>

#include <cmath>

namespace evenkeel {
namespace {

// "name:metric:threshold" of the rules.
std::string rules_of(const ModelConfig& model, const AlarmConfig& config = {}) {
    std::string text;
    for (const AlarmRule& rule : alarm_rules(config, model)) {
        char threshold[32];
        std::snprintf(threshold, sizeof threshold, "%.3g", rule.setting.threshold);
        text += concat(rule.name, ":", rule.metric, ":", threshold, " ");
    }
    return text;
}

TEST(AlarmRulesTest, WatchLogitsOfPlainAttentionAndTheBoundOfANorm) {
    ModelConfig model;
    model.attention.qk_norm.kind = QkNormKind::kNone;
    EXPECT_EQ(rules_of(model),
              "max_logit:max_logit:100 max_logit_critical:max_logit:1e+04 "
              "logit_growth:max_logit:0.25 entropy:entropy_share:0.1 saturation:saturation:0.5 "
              "gradient_norm:grad_norm_deviations_lasting:6 ");
    model.attention.softcap = 50.0;
    EXPECT_EQ(rules_of(model).substr(0, 33), "max_logit:max_logit_uncapped:100 ");
    model.attention.softcap = 0.0;
    model.attention.qk_norm.kind = QkNormKind::kRms;
    EXPECT_EQ(rules_of(model),
              "max_logit_critical:max_logit:1e+04 logit_bound:logit_bound:100 "
              "logit_growth:logit_bound:0.25 entropy:entropy_share:0.1 saturation:saturation:0.5 "
              "gain_drift:q_gain_max:4 gain_drift:k_gain_max:4 "
              "small_rows:q_rms_min:0.00316 small_rows:k_rms_min:0.00316 "
              "gradient_norm:grad_norm_deviations_lasting:6 ");
}

// Nothing bounds them before the end.
TEST(AlarmRulesTest, WatchLogitsWhereANormComesIn) {
    ModelConfig model;
    model.attention.qk_norm.anneal_steps = 100;
    EXPECT_EQ(rules_of(model),
              "max_logit:max_logit:100 max_logit_critical:max_logit:1e+04 "
              "logit_growth:max_logit:0.25 entropy:entropy_share:0.1 saturation:saturation:0.5 "
              "gain_drift:q_gain_max:4 gain_drift:k_gain_max:4 "
              "small_rows:q_rms_min:0.00316 small_rows:k_rms_min:0.00316 "
              "gradient_norm:grad_norm_deviations_lasting:6 ");
}

// Each layer for what it has: NaN and infinity stand in the tables for what others lack.
TEST(AlarmRulesTest, WatchEachLayerForWhatItHas) {
    ModelConfig model;
    model.num_layers = 3;
    model.qk_norm_layers = "1";
    const std::vector<bool> with{false, true, false}, without{true, false, true};
    EXPECT_EQ(rules_of(model),
              "max_logit:max_logit:100 max_logit_critical:max_logit:1e+04 "
              "logit_bound:logit_bound:100 logit_growth:logit_bound:0.25 "
              "logit_growth:max_logit:0.25 entropy:entropy_share:0.1 saturation:saturation:0.5 "
              "gain_drift:q_gain_max:4 gain_drift:k_gain_max:4 "
              "small_rows:q_rms_min:0.00316 small_rows:k_rms_min:0.00316 "
              "gradient_norm:grad_norm_deviations_lasting:6 ");
    for (const AlarmRule& rule : alarm_rules({}, model)) {
        const bool of_norm = rule.name == "logit_bound" || rule.name == "gain_drift" ||
                             rule.name == "small_rows" || rule.metric == "logit_bound";
        const bool of_plain = rule.name == "max_logit" || (rule.name == "logit_growth" && !of_norm);
        const std::vector<bool> all;
        EXPECT_EQ(rule.rows, of_norm    ? with
                             : of_plain ? without
                                        : all)
            << rule.name << " of " << rule.metric;
    }
}

TEST(AlarmRulesTest, CompareRowsWithTheEpsOfTheirNorm) {
    ModelConfig model;
    model.attention.qk_norm.kind = QkNormKind::kL2;
    model.attention.qk_norm.eps = 1e-4;
    model.attention.head_dim = 64;
    for (const AlarmRule& rule : alarm_rules({}, model)) {
        // rms^2 D < 10 eps
        if (rule.name == "small_rows") {
            EXPECT_NEAR(rule.setting.threshold, std::sqrt(1e-3 / 64), 1e-12);
        }
    }
    model.attention.qk_norm.eps = 0.0;
    EXPECT_EQ(rules_of(model).find("small_rows"), std::string::npos);
}

TEST(AlarmRulesTest, NameTheSettingThatIsWrong) {
    AlarmConfig config;
    config.validate();
    config.saturation.records = 0;
    try {
        config.validate();
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("alarms.saturation.records: got 0"),
                  std::string::npos)
            << error.what();
    }
    config = {};
    config.gain_drift.threshold = 1.0;  // every gain is out of bounds
    EXPECT_THROW(config.validate(), Error);
}

}  // namespace
}  // namespace evenkeel
