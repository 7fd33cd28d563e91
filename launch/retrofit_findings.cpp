#include "launch/retrofit_findings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "framework/json.h"
#include "launch/saved_run.h"
#include "launch/studies/study.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<const char*, GainEstimator> kEstimators[] = {
    {"mean_rms", GainEstimator::kMeanRms}, {"matched_std", GainEstimator::kMatchedStd},
    {"kl_tied", GainEstimator::kKlTied},   {"kl_untied", GainEstimator::kKlUntied},
    {"ones", GainEstimator::kOnes},
};

bool is_fitted(GainEstimator estimator) {
    return estimator == GainEstimator::kKlTied || estimator == GainEstimator::kKlUntied;
}

// The head with the largest of a number; one that is no number counts as the largest.
template <typename F>
std::size_t worst_head(const LayerFinding& layer, F&& number) {
    std::size_t worst = 0;
    for (std::size_t head = 1; head < layer.heads.size(); ++head) {
        const double now = number(layer.heads[head]), most = number(layer.heads[worst]);
        if (now > most || (std::isnan(now) && !std::isnan(most))) worst = head;
    }
    return worst;
}

template <typename F>
double largest(const LayerFinding& layer, F&& number) {
    return number(layer.heads[worst_head(layer, number)]);
}

double variation(const HeadFinding& head) { return std::max(head.q_variation, head.k_variation); }

template <typename F>
double mean(const LayerFinding& layer, F&& number) {
    double sum = 0.0;
    for (const HeadFinding& head : layer.heads) sum += number(head);
    return sum / static_cast<double>(layer.heads.size());
}

// JSON has no infinity and no NaN.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string jump_text(double loss_jump) { return format("%+.4f", loss_jump) + " nats"; }

Json to_json(const HeadFinding& head) {
    return {{"gains", name_of(head.estimator)},
            {"reason", head.reason},
            {"q_rms", number(head.q_mean)},
            {"k_rms", number(head.k_mean)},
            {"q_variation", number(head.q_variation)},
            {"k_variation", number(head.k_variation)},
            {"max_logit_before", number(head.max_logit_before)},
            {"max_logit_after", number(head.max_logit_after)},
            {"entropy_before", number(head.entropy_before)},
            {"entropy_after", number(head.entropy_after)},
            {"kl_mean_rms", number(head.kl_mean_rms)},
            {"kl_mean", number(head.kl_mean)},
            {"kl_p99", number(head.kl_p99)},
            {"bound", number(head.bound)}};
}

}  // namespace

GainEstimator estimator_of(const std::string& wanted) {
    std::string known;
    for (const auto& [name, estimator] : kEstimators) {
        if (wanted == name) return estimator;
        known += concat(known.empty() ? "" : ", ", name);
    }
    throw_error(ErrorCode::kConfig, "retrofit",
                concat("--gains: got \"", wanted, "\", want one of ", known));
}

const char* name_of(GainEstimator wanted) {
    for (const auto& [name, estimator] : kEstimators) {
        if (wanted == estimator) return name;
    }
    return "";
}

const char* name_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::kFine:
            return "fine";
        case Verdict::kRefined:
            return "refined";
        case Verdict::kRefine:
            return "refine";
        case Verdict::kAnneal:
            return "anneal carries it";
        case Verdict::kLeave:
            return "leave as it is";
        case Verdict::kNotAsked:
            return "not asked for";
    }
    return "";
}

LayerVerdict judge(const LayerFinding& layer, double loss_jump, bool annealed) {
    if (!layer.normed) return {Verdict::kNotAsked, "not among --layers"};
    const auto divergence = [](const HeadFinding& head) { return head.kl_mean; };
    const std::size_t worst = worst_head(layer, divergence);
    const HeadFinding& head = layer.heads[worst];
    const bool known = std::isfinite(head.kl_mean);
    const std::string kl = format("%.3f", head.kl_mean);
    const bool small = loss_jump <= kFineJump;
    const bool fitted = std::any_of(layer.heads.begin(), layer.heads.end(),
                                    [](const HeadFinding& h) { return is_fitted(h.estimator); });
    const std::string yet =
        small ? concat(", but the model's loss moves by ", jump_text(loss_jump)) : "";
    if (known && head.kl_mean > kMuchDivergence) {
        const std::string why = concat("head ", worst, " attends otherwise than it did: KL ", kl,
                                       " nats, above ", format("%.1f", kMuchDivergence));
        if (small) return {fitted ? Verdict::kRefined : Verdict::kFine, why + yet};
        if (!is_fitted(head.estimator)) {
            return {Verdict::kRefine, why + "; --gains kl_tied fits them"};
        }
        const std::string even = why + " even with fitted gains";
        if (annealed) {
            return {Verdict::kAnneal,
                    even + "; the norm comes in over --anneal's steps, and training adapts to it"};
        }
        // A jump that is no number is no small one.
        if (!(loss_jump <= kMuchJump)) {
            return {Verdict::kLeave, concat(even, ", and the model's loss jumps by ",
                                            jump_text(loss_jump), "; or --anneal")};
        }
        return {Verdict::kRefined,
                concat(even, ", but the model's loss jumps by ", jump_text(loss_jump), " only")};
    }
    const GainFitOptions limits;
    const std::size_t wide = worst_head(layer, variation);
    const auto logit = [](const HeadFinding& h) { return h.max_logit_before; };
    const std::size_t loud = worst_head(layer, logit);
    std::string why;
    if (variation(layer.heads[wide]) > limits.refine_variation) {
        why = concat("norms of head ", wide, " vary by ",
                     format("%.2f", variation(layer.heads[wide])), ", above ",
                     limits.refine_variation);
    } else if (layer.heads[loud].max_logit_before > limits.refine_max_logit) {
        why = concat("head ", loud, " has had logits of ",
                     format("%.0f", layer.heads[loud].max_logit_before),
                     " on held-out sequences, above ", limits.refine_max_logit);
    } else if (known && head.kl_mean > kFineDivergence) {
        why = concat("KL of head ", worst, " is ", kl, " nats, above ", kFineDivergence);
    }
    const bool quiet = why.empty();
    if (quiet) {
        why = concat("norms vary by ", format("%.2f", variation(layer.heads[wide])), " at most",
                     known ? ", KL at most " + kl + " nats" : std::string());
    }
    if (fitted) {
        const auto with_mean_rms = [](const HeadFinding& h) { return h.kl_mean_rms; };
        return {Verdict::kRefined,
                concat(why, "; fitted gains: mean KL ", format("%.3f", mean(layer, with_mean_rms)),
                       " -> ", format("%.3f", mean(layer, divergence)))};
    }
    if (quiet) return {Verdict::kFine, why};
    if (small) return {Verdict::kFine, why + yet};
    return {Verdict::kRefine,
            why + (known ? concat("; KL ", kl, " nats, --gains kl_tied makes it less")
                         : std::string("; gains cannot be fitted here, --anneal helps"))};
}

std::vector<LayerVerdict> verdicts_of(const RetrofitFindings& findings) {
    std::vector<LayerVerdict> verdicts;
    for (const LayerFinding& layer : findings.layers) {
        verdicts.push_back(
            judge(layer, findings.loss_after - findings.loss_before, findings.anneal_steps > 0));
    }
    return verdicts;
}

std::string text_of_gains(const std::vector<LayerFinding>& layers) {
    std::ptrdiff_t heads = 0;
    for (const LayerFinding& layer : layers) {
        if (layer.normed) heads += static_cast<std::ptrdiff_t>(layer.heads.size());
    }
    if (heads == 0) return "none";
    std::string text;
    for (const auto& [name, estimator] : kEstimators) {
        std::ptrdiff_t count = 0;
        for (const LayerFinding& layer : layers) {
            if (!layer.normed) continue;
            count += std::count_if(
                layer.heads.begin(), layer.heads.end(),
                [&, e = estimator](const HeadFinding& head) { return head.estimator == e; });
        }
        if (count == 0) continue;
        if (count == heads) return name;
        text += concat(text.empty() ? "" : ", ", name, " x", count);
    }
    return text;
}

void add_advice(RetrofitFindings& findings) {
    constexpr double kAlarm = 100.0, kUsual = 64.0;  // logits
    if (findings.gain_bound > 0.0 || findings.estimator == GainEstimator::kOnes) return;
    double bound = 0.0, logit = 0.0;
    for (const LayerFinding& layer : findings.layers) {
        if (!layer.normed) continue;
        for (const HeadFinding& head : layer.heads) {
            if (std::isfinite(head.bound)) bound = std::max(bound, head.bound);
            logit = std::max(logit, head.max_logit_before);
        }
    }
    if (bound <= logit && bound <= kAlarm) return;
    // None that is too low for a row of keys: retrofit refuses those.
    const double least =
        std::ceil(std::log(static_cast<double>(std::max<std::int64_t>(findings.seq_len, 3))) / 2);
    const double better = bound > kUsual ? kUsual : std::max(std::ceil(logit), least);
    if (better >= bound) return;
    findings.notes.push_back(
        concat("the largest bound, ", format("%.1f", bound), ", is above ",
               bound > kAlarm ? concat(format("%.0f", kAlarm), ", where alarms begin")
                              : concat("the largest logit that there was, ", format("%.1f", logit)),
               ": --bound ", format("%.0f", better), " holds it lower, now and in training"));
}

Json to_json(const RetrofitFindings& findings) {
    const std::vector<LayerVerdict> verdicts = verdicts_of(findings);
    Json layers = Json::array();
    for (std::size_t i = 0; i < findings.layers.size(); ++i) {
        const LayerFinding& layer = findings.layers[i];
        const LayerVerdict& verdict = verdicts[i];
        Json heads = Json::array();
        for (const HeadFinding& head : layer.heads) heads.push_back(to_json(head));
        layers.push_back({{"layer", i},
                          {"normed", layer.normed},
                          {"verdict", name_of(verdict.verdict)},
                          {"why", verdict.text},
                          {"heads", heads}});
    }
    return {{"model", findings.model},
            {"out", findings.out},
            {"data", findings.data},
            {"gains", name_of(findings.estimator)},
            {"anneal_steps", findings.anneal_steps},
            {"gain_bound", findings.gain_bound},
            {"sequence_length", findings.seq_len},
            {"calibration_sequences", findings.calibration_sequences},
            {"held_out_sequences", findings.held_out_sequences},
            {"loss_before", number(findings.loss_before)},
            {"loss_after", number(findings.loss_after)},
            {"loss_jump", number(findings.loss_after - findings.loss_before)},
            {"loss_at_start", number(findings.loss_at_start)},
            {"gradient_norm_before", number(findings.gradient_norm_before)},
            {"gradient_norm_after", number(findings.gradient_norm_after)},
            {"gradient_norm_ratio",
             number(findings.gradient_norm_after / findings.gradient_norm_before)},
            {"layers", layers},
            {"notes", findings.notes},
            {"commands", findings.commands}};
}

std::string to_text(const RetrofitFindings& findings) {
    using study::Cell;
    study::Table table{"layers",
                       "",
                       {{"layer", "layer", "%.0f"},
                        {"gains", "gains"},
                        {"variation", "CV", "%.2f"},
                        {"before", "max logit", "%.1f"},
                        {"after", "after", "%.1f"},
                        {"bound", "bound", "%.1f"},
                        {"kl", "KL", "%.3f"},
                        {"p99", "KL p99", "%.3f"},
                        {"verdict", "verdict"}},
                       {}};
    const std::vector<LayerVerdict> verdicts = verdicts_of(findings);
    std::string reasons, refined;
    std::size_t count = 0;
    constexpr std::size_t kShown = 12;
    for (std::size_t i = 0; i < findings.layers.size(); ++i) {
        const LayerFinding& layer = findings.layers[i];
        const LayerVerdict& verdict = verdicts[i];
        const auto cell = [&](double HeadFinding::*member) -> Cell {
            if (!layer.normed && member != &HeadFinding::max_logit_before) return {};
            const double value = largest(layer, [&](const HeadFinding& h) { return h.*member; });
            return std::isfinite(value) ? Cell(value) : Cell();
        };
        table.rows.push_back({static_cast<double>(i), text_of_gains({layer}),
                              largest(layer, variation), cell(&HeadFinding::max_logit_before),
                              cell(&HeadFinding::max_logit_after), cell(&HeadFinding::bound),
                              cell(&HeadFinding::kl_mean), cell(&HeadFinding::kl_p99),
                              std::string(name_of(verdict.verdict))});
        reasons += concat("  layer ", i, "  ", name_of(verdict.verdict), ": ", verdict.text, "\n");
        for (std::size_t head = 0; head < layer.heads.size(); ++head) {
            const std::string& reason = layer.heads[head].reason;
            if (reason.empty() || ++count > kShown) continue;
            refined += concat("  layer ", i, " head ", head, ": ", reason, "\n");
        }
    }
    std::string text = study::to_text(table);
    text +=
        "  (each column: the largest of the layer's heads; max logit and after: on the held-out "
        "sequences)\n\n" +
        reasons + "\n";
    if (count > 0)
        text += "heads that want more than the mean rms (by the calibration sequences)\n" + refined;
    if (count > kShown) text += concat("  and ", count - kShown, " more: retrofit.json\n");
    text +=
        concat("loss        ", format("%.4f", findings.loss_before), " -> ",
               format("%.4f", findings.loss_after), " (",
               format("%+.4f", findings.loss_after - findings.loss_before), " nats)",
               findings.anneal_steps > 0 ? concat(" with the norm at once; annealed, it starts at ",
                                                  format("%.4f", findings.loss_at_start))
                                         : std::string(),
               "\n");
    text += concat(
        "gradient    ", format("%.3g", findings.gradient_norm_before), " -> ",
        format("%.3g", findings.gradient_norm_after), " (x ",
        format("%.2f", findings.gradient_norm_after / findings.gradient_norm_before),
        ") at the first step",
        findings.anneal_steps > 0 ? " with the norm at once; annealed, it is as before\n" : "\n");
    for (const std::string& note : findings.notes) text += "note        " + note + "\n";
    text += "written     " + findings.out + "\n";
    if (!findings.commands.empty()) text += "\nnext\n";
    for (const std::string& command : findings.commands) text += "  " + command + "\n";
    return text;
}

}  // namespace evenkeel
