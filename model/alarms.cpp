#include "model/alarms.h"

#include <cmath>

namespace evenkeel {
namespace {

// Logits that grow below this are far from any harm.
constexpr double kLeastGrowingLogit = 25.0;

}  // namespace

void AlarmConfig::visit_fields(ConfigVisitor& v) {
    v.section("max_logit", max_logit,
              "largest logit of a head, without norm on q and k; before a softcap");
    v.section("max_logit_critical", max_logit_critical,
              "the same, where runs have not been known to recover");
    v.section("logit_bound", logit_bound, "with a norm: what the gains let logits be at most");
    v.section("logit_growth", logit_growth,
              "logits, or their bound with a norm: time in which they double over what is left");
    v.section("entropy", entropy,
              "a layer's mean entropy over that of even attention, below and falling");
    v.section("saturation", saturation, "share of a layer's rows that see one key alone");
    v.section("gain_drift", gain_drift, "largest gain of a head over its first value, or under it");
    v.section("small_rows", small_rows,
              "squared rms of q and k before the norm over eps, below which eps has a say");
    v.section("gradient_norm", gradient_norm,
              "standard deviations of the last 128 steps above their mean");
}

void AlarmConfig::validate() const {
    max_logit.validate("alarms.max_logit");
    max_logit_critical.validate("alarms.max_logit_critical");
    logit_bound.validate("alarms.logit_bound");
    logit_growth.validate("alarms.logit_growth");
    entropy.validate("alarms.entropy");
    saturation.validate("alarms.saturation");
    gain_drift.validate("alarms.gain_drift");
    EVENKEEL_CHECK_CODE(gain_drift.threshold > 1.0, ErrorCode::kConfig, "alarms",
                        "alarms.gain_drift.threshold: got ", gain_drift.threshold,
                        ", want more than 1: a gain is that many times its first value, or that "
                        "part of it");
    small_rows.validate("alarms.small_rows");
    gradient_norm.validate("alarms.gradient_norm");
}

std::vector<AlarmRule> alarm_rules(const AlarmConfig& config, const ModelConfig& model) {
    using Test = AlarmRule::Test;
    std::vector<AlarmRule> rules;
    const auto add = [&](const char* name, const char* metric, Test test,
                         const AlarmSetting& setting, const char* section) -> AlarmRule& {
        AlarmRule rule;
        rule.name = name, rule.metric = metric, rule.test = test, rule.setting = setting;
        rule.row = "layer", rule.column = "head";
        rule.advice = concat("docs/telemetry.md, \"", section, "\"");
        rules.push_back(std::move(rule));
        return rules.back();
    };
    const AttentionConfig& attention = model.attention;
    const QkNormConfig& norm = attention.qk_norm;
    const bool normed = norm.kind != QkNormKind::kNone;
    // Where nothing bounds the logits, or not yet, these are watched themselves.
    const bool bounded = normed && norm.anneal_steps == 0;
    const char* logits = attention.softcap > 0.0 ? "max_logit_uncapped" : "max_logit";
    if (!bounded) add("max_logit", logits, Test::kAbove, config.max_logit, "Logits");
    add("max_logit_critical", logits, Test::kAbove, config.max_logit_critical, "Logits");
    if (bounded) add("logit_bound", "logit_bound", Test::kAbove, config.logit_bound, "Logits");
    add("logit_growth", bounded ? "logit_bound" : logits, Test::kDoubling, config.logit_growth,
        "Logits")
        .least = kLeastGrowingLogit;
    add("entropy", "entropy_share", Test::kBelowFalling, config.entropy, "Entropy").of_row_means =
        true;
    add("saturation", "saturation", Test::kAbove, config.saturation, "Entropy").of_row_means = true;
    if (normed) {
        add("gain_drift", "q_gain_max", Test::kDrift, config.gain_drift, "Gains");
        add("gain_drift", "k_gain_max", Test::kDrift, config.gain_drift, "Gains");
        // eps is added to the mean of squares, or with l2 to their sum.
        const double channels =
            norm.kind == QkNormKind::kL2 ? static_cast<double>(attention.head_dim) : 1.0;
        AlarmSetting rows = config.small_rows;
        rows.threshold = std::sqrt(rows.threshold * norm.eps / channels);
        if (norm.eps > 0.0) {
            add("small_rows", "q_rms_min", Test::kBelow, rows, "Norms");
            add("small_rows", "k_rms_min", Test::kBelow, rows, "Norms");
        }
    }
    add("gradient_norm", "grad_norm_deviations", Test::kAbove, config.gradient_norm,
        "Gradient norm and loss");
    return rules;
}

}  // namespace evenkeel
