// The page of a retrofit: what every head's norms, logits and divergences were, and a verdict a layer.
#include <algorithm>
#include <cmath>

#include "framework/json.h"
#include "launch/report_page.h"
#include "launch/report_plots.h"
#include "launch/retrofit_findings.h"
#include "launch/saved_run.h"

namespace evenkeel {
namespace {

struct Quantity {
    const char* title;
    const char* subtitle;
    const char* unit;
    const char* format;
    double HeadFinding::*member;
    bool of_norm = false;  // layers without one have none
};

constexpr Quantity kVariations[] = {
    {"How much queries' norms vary", "rms of each head's queries: deviation over mean", "CV", ".2f",
     &HeadFinding::q_variation},
    {"How much keys' norms vary", "rms of the keys that each head reads", "CV", ".2f",
     &HeadFinding::k_variation},
};
constexpr Quantity kDivergences[] = {
    {"Divergence, mean", "of the attention to come from the one that was, held-out rows", "nats",
     ".3f", &HeadFinding::kl_mean, true},
    {"Divergence, 99th percentile", "one row in a hundred has more", "nats", ".3f",
     &HeadFinding::kl_p99, true},
};
constexpr Quantity kLogits[] = {
    {"Largest logit before", "held-out sequences", "logit", ".1f", &HeadFinding::max_logit_before},
    {"Largest logit after", "the same sequences", "logit", ".1f", &HeadFinding::max_logit_after},
    {"Bound", "that no logit can pass, whatever the weights", "logit", ".1f", &HeadFinding::bound,
     true},
};

// The colours of one domain, so that maps that belong together can be compared.
template <std::size_t N>
void add_maps(const RetrofitFindings& findings,
              const Quantity (&quantities)[N],
              bool one_scale,
              std::vector<Figure>& figures) {
    double most = 0.0;
    for (const LayerFinding& layer : findings.layers) {
        for (const HeadFinding& head : layer.heads) {
            for (const Quantity& quantity : quantities) {
                const double value = head.*quantity.member;
                if (std::isfinite(value)) most = std::max(most, value);
            }
        }
    }
    for (const Quantity& quantity : quantities) {
        HeatMap map;
        map.by_head = true;
        map.layers = static_cast<std::int64_t>(findings.layers.size());
        map.heads = 1;
        map.unit = quantity.unit;
        map.format = quantity.format;
        for (std::size_t i = 0; quantity.of_norm && i < findings.layers.size(); ++i) {
            if (!findings.layers[i].normed) map.empty_layers.push_back(static_cast<int>(i));
        }
        if (one_scale) map.domain = {0.0, std::max(most, 1e-9)};
        for (std::size_t head = 0; head < findings.layers.front().heads.size(); ++head) {
            map.steps.push_back(static_cast<double>(head));
            std::vector<float> column;
            for (const LayerFinding& layer : findings.layers) {
                column.push_back(static_cast<float>(layer.heads[head].*quantity.member));
            }
            map.columns.push_back(std::move(column));
        }
        Figure figure;
        figure.title = quantity.title;
        figure.subtitle = quantity.subtitle;
        figure.spec = heat_map_spec(map);
        figure.raster = true;
        figures.push_back(std::move(figure));
    }
}

PageTable verdict_table(const RetrofitFindings& findings) {
    PageTable table{
        "Verdicts",
        concat("Above ", kFineDivergence, " nats of divergence a layer is not fine; above ",
               format("%.1f", kMuchDivergence), ", fitted, it may be better left without a norm ",
               "(--layers); neither where the model's loss jumps by ", kFineJump, " nats or less."),
        {"layer", "verdict", "because"},
        {},
        {1, 2}};
    const std::vector<LayerVerdict> verdicts = verdicts_of(findings);
    for (std::size_t i = 0; i < findings.layers.size(); ++i) {
        table.rows.push_back({std::to_string(i), name_of(verdicts[i].verdict), verdicts[i].text});
    }
    return table;
}

PageTable reason_table(const RetrofitFindings& findings) {
    PageTable table{"Heads that want more than the mean rms",
                    "By the sequences that gains were made from.",
                    {"layer", "head", "gains", "because"},
                    {},
                    {2, 3}};
    for (std::size_t i = 0; i < findings.layers.size(); ++i) {
        const LayerFinding& layer = findings.layers[i];
        for (std::size_t h = 0; h < layer.heads.size() && layer.normed; ++h) {
            const HeadFinding& head = layer.heads[h];
            if (head.reason.empty()) continue;
            table.rows.push_back(
                {std::to_string(i), std::to_string(h), name_of(head.estimator), head.reason});
        }
    }
    return table;
}

PageTable command_table(const RetrofitFindings& findings) {
    PageTable table{"What to type next", "", {"command"}, {}, {0}};
    for (const std::string& command : findings.commands) table.rows.push_back({command});
    return table;
}

PageTable head_table(const RetrofitFindings& findings) {
    PageTable table{"Heads",
                    "CV: deviation over mean of the rms. KL in nats, of held-out rows.",
                    {"layer", "head", "gains", "CV q", "CV k", "max logit", "after", "bound",
                     "entropy", "after", "KL, mean rms", "KL", "KL p99"},
                    {}};
    for (std::size_t i = 0; i < findings.layers.size(); ++i) {
        const LayerFinding& layer = findings.layers[i];
        for (std::size_t h = 0; h < layer.heads.size(); ++h) {
            const HeadFinding& head = layer.heads[h];
            const auto of_norm = [&](const char* as, double value) {
                return layer.normed ? format(as, value) : std::string("none");
            };
            table.rows.push_back(
                {std::to_string(i), std::to_string(h),
                 layer.normed ? name_of(head.estimator) : "none", format("%.2f", head.q_variation),
                 format("%.2f", head.k_variation), format("%.1f", head.max_logit_before),
                 format("%.1f", head.max_logit_after), of_norm("%.1f", head.bound),
                 format("%.2f", head.entropy_before), format("%.2f", head.entropy_after),
                 of_norm("%.3f", head.kl_mean_rms), of_norm("%.3f", head.kl_mean),
                 of_norm("%.3f", head.kl_p99)});
        }
    }
    return table;
}

// "mean rms, fitted by kl_tied in 3 of 8 heads" where fits have taken the place of some of what was asked for.
std::string gains_text(const RetrofitFindings& findings) {
    std::string text = text_of_gains(findings.layers);
    if (findings.estimator != GainEstimator::kMeanRms) return text;
    std::ptrdiff_t heads = 0, fitted = 0;
    for (const LayerFinding& layer : findings.layers) {
        if (!layer.normed) continue;
        heads += static_cast<std::ptrdiff_t>(layer.heads.size());
        fitted += std::count_if(
            layer.heads.begin(), layer.heads.end(),
            [](const HeadFinding& head) { return head.estimator == GainEstimator::kKlTied; });
    }
    if (fitted == 0) return text;
    return concat("mean rms, fitted by ", name_of(GainEstimator::kKlTied), " in ", fitted, " of ",
                  heads, " heads");
}

}  // namespace

std::string to_page(const RetrofitFindings& findings, const std::string& vega) {
    ReportPage page;
    page.title = "Retrofit of " + findings.model;
    page.subtitle = concat(
        "QK-norm with gains of ", gains_text(findings),
        findings.anneal_steps > 0 ? concat(", annealed over ", findings.anneal_steps, " steps")
                                  : std::string(),
        "; ", findings.calibration_sequences, " sequences of ", findings.seq_len,
        " tokens for the gains, ", findings.held_out_sequences, " others to judge by");
    page.facts = {
        {format("%+.4f", findings.loss_after - findings.loss_before), "nats: the loss's jump"},
        {format("%.4f", findings.loss_before), "loss before"},
        {format("%.4f", findings.loss_after), "loss after, the norm there at once"},
        {format("%.2f", findings.gradient_norm_after / findings.gradient_norm_before),
         "times the first gradient's norm"}};
    if (findings.anneal_steps > 0) {
        page.facts.push_back(
            {format("%.4f", findings.loss_at_start), "loss at the start, annealed"});
    }
    page.findings = findings.notes;
    page.tables = {verdict_table(findings)};
    for (const PageTable& table : {reason_table(findings), command_table(findings)}) {
        if (!table.rows.empty()) page.tables.push_back(table);
    }
    page.tables.push_back(head_table(findings));
    add_maps(findings, kVariations, true, page.figures);
    add_maps(findings, kDivergences, false, page.figures);
    add_maps(findings, kLogits, true, page.figures);
    return to_html(page, vega);
}

}  // namespace evenkeel
