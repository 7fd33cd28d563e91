#include "model/telemetry/alarms.h"

#include <algorithm>
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
              "standard deviations that three steps in a row are above the mean of the last 128");
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
    // Layers with a norm are watched for other numbers than those without. Where nothing bounds the logits, or not
    // yet, these are watched themselves.
    std::vector<bool> normed, bounded, unbounded;
    for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
        const QkNormConfig of_layer = model.layer_attention(layer).qk_norm;
        normed.push_back(of_layer.kind != QkNormKind::kNone);
        bounded.push_back(normed.back() && of_layer.anneal_steps == 0);
        unbounded.push_back(!bounded.back());
    }
    const auto any = [](const std::vector<bool>& layers) {
        return std::find(layers.begin(), layers.end(), true) != layers.end();
    };
    const auto of = [](const std::vector<bool>& layers, AlarmRule& rule) -> AlarmRule& {
        const bool all = std::find(layers.begin(), layers.end(), false) == layers.end();
        if (!all) rule.rows = layers;
        return rule;
    };
    const char* logits = attention.softcap > 0.0 ? "max_logit_uncapped" : "max_logit";
    if (any(unbounded)) {
        of(unbounded, add("max_logit", logits, Test::kAbove, config.max_logit, "Logits"));
    }
    add("max_logit_critical", logits, Test::kAbove, config.max_logit_critical, "Logits");
    if (any(bounded)) {
        of(bounded, add("logit_bound", "logit_bound", Test::kAbove, config.logit_bound, "Logits"));
    }
    const auto growth = [&](const char* metric, const std::vector<bool>& layers) {
        if (!any(layers)) return;
        of(layers, add("logit_growth", metric, Test::kDoubling, config.logit_growth, "Logits"))
            .least = kLeastGrowingLogit;
    };
    growth("logit_bound", bounded);
    growth(logits, unbounded);
    add("entropy", "entropy_share", Test::kBelowFalling, config.entropy, "Entropy").of_row_means =
        true;
    add("saturation", "saturation", Test::kAbove, config.saturation, "Entropy").of_row_means = true;
    if (any(normed)) {
        of(normed, add("gain_drift", "q_gain_max", Test::kDrift, config.gain_drift, "Gains"));
        of(normed, add("gain_drift", "k_gain_max", Test::kDrift, config.gain_drift, "Gains"));
        // eps is added to the mean of squares, or with l2 to their sum.
        const double channels =
            norm.kind == QkNormKind::kL2 ? static_cast<double>(attention.head_dim) : 1.0;
        AlarmSetting rows = config.small_rows;
        rows.threshold = std::sqrt(rows.threshold * norm.eps / channels);
        if (norm.eps > 0.0) {
            of(normed, add("small_rows", "q_rms_min", Test::kBelow, rows, "Norms"));
            of(normed, add("small_rows", "k_rms_min", Test::kBelow, rows, "Norms"));
        }
    }
    add("gradient_norm", "grad_norm_deviations_lasting", Test::kAbove, config.gradient_norm,
        "Gradient norm and loss");
    return rules;
}

}  // namespace evenkeel
