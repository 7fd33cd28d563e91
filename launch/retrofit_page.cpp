// The page of a retrofit: what every head's norms, logits and divergences were, and a verdict a layer.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

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
};

constexpr Quantity kVariations[] = {
    {"How much queries' norms vary", "rms of each head's queries: deviation over mean", "CV", ".2f",
     &HeadFinding::q_variation},
    {"How much keys' norms vary", "rms of the keys that each head reads", "CV", ".2f",
     &HeadFinding::k_variation},
};
constexpr Quantity kDivergences[] = {
    {"Divergence, mean", "of the attention to come from the one that was, held-out rows", "nats",
     ".3f", &HeadFinding::kl_mean},
    {"Divergence, 99th percentile", "one row in a hundred has more", "nats", ".3f",
     &HeadFinding::kl_p99},
};
constexpr Quantity kLogits[] = {
    {"Largest logit before", "held-out sequences", "logit", ".1f", &HeadFinding::max_logit_before},
    {"Largest logit after", "the same sequences", "logit", ".1f", &HeadFinding::max_logit_after},
    {"Bound", "that no logit can pass, whatever the weights", "logit", ".1f", &HeadFinding::bound},
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
               format("%.1f", kMuchDivergence), " it is better left without a norm (--layers)."),
        {"layer", "verdict", "because"},
        {}};
    for (std::size_t i = 0; i < findings.layers.size(); ++i) {
        const LayerVerdict verdict = judge(findings.layers[i]);
        table.rows.push_back({std::to_string(i), name_of(verdict.verdict), verdict.text});
    }
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
            table.rows.push_back(
                {std::to_string(i), std::to_string(h),
                 layer.normed ? name_of(head.estimator) : "none", format("%.2f", head.q_variation),
                 format("%.2f", head.k_variation), format("%.1f", head.max_logit_before),
                 format("%.1f", head.max_logit_after), format("%.1f", head.bound),
                 format("%.2f", head.entropy_before), format("%.2f", head.entropy_after),
                 format("%.3f", head.kl_mean_rms), format("%.3f", head.kl_mean),
                 format("%.3f", head.kl_p99)});
        }
    }
    return table;
}

}  // namespace

std::string to_page(const RetrofitFindings& findings, const std::string& vega) {
    ReportPage page;
    page.title = "Retrofit of " + findings.model;
    page.subtitle = concat(
        "QK-norm with gains of ", name_of(findings.estimator),
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
    page.tables = {verdict_table(findings), head_table(findings)};
    add_maps(findings, kVariations, true, page.figures);
    add_maps(findings, kDivergences, false, page.figures);
    add_maps(findings, kLogits, true, page.figures);
    return to_html(page, vega);
}

}  // namespace evenkeel
