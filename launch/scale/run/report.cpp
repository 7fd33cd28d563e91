#include "launch/scale/run/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>

#include "framework/error.h"
#include "framework/log.h"
#include "framework/storage/checkpoint.h"
#include "launch/report.h"
#include "launch/report_bars.h"
#include "launch/report_plots.h"
#include "launch/saved_run.h"
#include "launch/scale/command.h"
#include "launch/scale/text.h"

namespace evenkeel::scale {
namespace {

namespace fs = std::filesystem;

constexpr const char* kColors[] = {"#2f6fb0", "#d1722a", "#3f8f4f", "#8a5aa8",
                                   "#b3261e", "#6b7683", "#a08a1e", "#2a9aa0"};
constexpr const char* kIdeal = "#9aa3ad";
constexpr const char* kComputing = "#2f6fb0";

const char* color_of(std::size_t index) { return kColors[index % std::size(kColors)]; }

// "8b, 8192 tokens, TP 4"; what all results have in common is left out.
class Names {
  public:
    explicit Names(const std::vector<Result>& results) {
        for (const Result& result : results) {
            models_.insert({model_of(result), 0});
            lengths_.insert({result.config.trainer.seq_len, 0});
        }
    }
    std::string series(const Result& result) const {
        std::string text;
        if (models_.size() > 1) text += model_of(result) + ", ";
        if (lengths_.size() > 1) text += concat(result.config.trainer.seq_len, " tokens, ");
        return text + concat("TP ", result.config.parallel.tensor_parallel);
    }
    std::string point(const Result& result) const {
        return concat(result.ranks, result.ranks == 1 ? " rank, " : " ranks, ", series(result));
    }

  private:
    static std::string model_of(const Result& result) {
        return result.key.substr(0, result.key.rfind("_s"));
    }
    std::map<std::string, int> models_;
    std::map<std::int64_t, int> lengths_;
};

using Value = double (*)(const Result&);

// A line for each series over the number of ranks. Ranks that take turns on cores are no scaling.
LinePlot over_ranks(const std::vector<Result>& results,
                    const Names& names,
                    const std::string& unit,
                    const std::string& format,
                    Value value) {
    LinePlot plot;
    plot.unit = unit;
    plot.format = format;
    plot.scale = LinePlot::Scale::kFromZero;
    plot.x_title = "ranks";
    std::map<std::string, std::size_t> places;
    for (const Result& result : results) {
        if (!result.measured || result.measured->oversubscribed || !std::isfinite(value(result))) {
            continue;
        }
        const std::string name = names.series(result);
        const auto [at, is_new] = places.insert({name, plot.series.size()});
        if (is_new) {
            plot.series.push_back({name, color_of(plot.series.size()), {}, Series::Style::kMarked});
        }
        plot.series[at->second].points.push_back(
            {static_cast<double>(result.ranks), value(result)});
    }
    for (Series& series : plot.series) {
        std::sort(series.points.begin(), series.points.end(),
                  [](const Point& a, const Point& b) { return a.x < b.x; });
    }
    plot.log_x = true;
    if (plot.series.empty()) plot.series.push_back({"none", kIdeal, {}, Series::Style::kMarked});
    return plot;
}

Figure speed_up_figure(const std::vector<Result>& results, const Names& names) {
    LinePlot plot =
        over_ranks(results, names, "speed-up", ".2f", [](const Result& r) { return r.speed_up; });
    std::vector<Point> ideal;
    for (const Result& r : results) {
        if (!r.measured || r.measured->oversubscribed) continue;
        ideal.push_back({static_cast<double>(r.ranks), r.speed_up / r.efficiency});
    }
    std::sort(ideal.begin(), ideal.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
    if (!ideal.empty()) plot.series.push_back({"ideal", kIdeal, ideal, Series::Style::kDashed});
    Figure figure = figure_of("Speed-up", plot);
    figure.note = "tokens/s over those of the point with fewest ranks of the same model and length";
    return figure;
}

std::string part_name(const CommunicationTime& part) {
    const std::string group = part.group == "tensor" ? "tensor-parallel"
                              : part.group == "data" ? "data-parallel"
                                                     : "key/value copies'";
    std::string operation = part.operation;
    std::replace(operation.begin(), operation.end(), '_', '-');
    return concat("waits for ", group, " ", operation);
}

// What a step took, measured and modelled, one bar each.
Figure breakdown_figure(const std::vector<Result>& results, const Names& names) {
    StackedBars bars;
    bars.unit = "ms a step";
    bars.format = ".4g";
    std::map<std::string, std::size_t> places;
    const auto add = [&](const std::string& part, double seconds) {
        const auto [at, is_new] = places.insert({part, bars.parts.size()});
        if (is_new) {
            const std::string color =
                part == "computing" ? kComputing : color_of(bars.parts.size());
            bars.parts.push_back({part, color, {}});
        }
        std::vector<double>& values = bars.parts[at->second].values;
        values.resize(bars.bars.size(), 0.0);
        values.back() += 1e3 * seconds;
    };
    for (const Result& r : results) {
        if (!r.measured || !r.measured->communication) continue;
        bars.bars.push_back(names.point(r));
        add("computing", r.measured->computing);
        for (const CommunicationTime& part : *r.measured->communication) {
            add(part_name(part), part.exposed);
        }
        if (!r.modelled) continue;
        bars.bars.push_back("  modelled");
        add("computing", r.modelled->computing() + r.modelled->overlap);
        add("modelled: tensor-parallel", r.modelled->tensor);
        add("modelled: data-parallel", r.modelled->data);
    }
    for (StackedBars::Part& part : bars.parts) part.values.resize(bars.bars.size(), 0.0);
    Figure figure = figure_of("Where a step's time goes", bars);
    figure.wide = true;
    figure.note =
        "computing is what a step takes without waiting for other ranks; below each point, where "
        "there is one, the model's step";
    return figure;
}

Figure model_figure(const std::vector<Result>& results) {
    LinePlot plot;
    plot.unit = "measured ms";
    plot.x_title = "modelled ms";
    plot.format = ".4g";
    plot.scale = LinePlot::Scale::kFromZero;
    Series steps{"step", color_of(0), {}, Series::Style::kPoints};
    double most = 0.0;
    for (const Result& r : results) {
        if (!r.modelled) continue;
        steps.points.push_back({1e3 * r.modelled->total(), 1e3 * r.measured->seconds});
        most = std::max(most, steps.points.back().x);
    }
    plot.series = {steps};
    if (most > 0.0) {
        plot.series.push_back(
            {"equal", kIdeal, {{0.0, 0.0}, {most, most}}, Series::Style::kDashed});
    }
    return figure_of("Measured against modelled", plot);
}

std::string milliseconds(double seconds) { return number("%.4g", 1e3 * seconds); }

PageTable points_table(const std::vector<Result>& results, const Names& names) {
    PageTable table;
    table.title = "Points";
    table.note =
        "step: median of the timed steps on the slowest rank, and quartiles; difference: largest "
        "of any step's loss from that of the same batch on the fewest ranks";
    table.header = {"point",      "batch",  "tokens/s", "step ms",    "quartiles",      "MFU",
                    "efficiency", "memory", "loss",     "difference", "J a 1000 tokens"};
    for (const Result& r : results) {
        if (!r.measured) continue;
        const Measured& m = *r.measured;
        table.rows.push_back(
            {names.point(r) + (m.oversubscribed ? " (take turns)" : ""),
             concat(r.config.trainer.batch_size), number("%.0f", m.tokens_per_second()),
             milliseconds(m.seconds),
             concat(milliseconds(m.first_quartile), " - ", milliseconds(m.third_quartile)),
             r.peak_flops > 0.0 ? percent_text(r.utilisation) : "",
             m.oversubscribed ? "" : percent_text(r.efficiency),
             bytes_text(static_cast<std::size_t>(m.peak_memory)), number("%.4f", m.losses.back()),
             r.loss_reference.empty() ? "" : number("%.1e", r.loss_difference),
             m.joules_per_token ? number("%.4g", 1e3 * *m.joules_per_token) : ""});
    }
    return table;
}

PageTable communication_table(const std::vector<Result>& results, const Names& names) {
    PageTable table;
    table.title = "Communication of a step";
    table.note =
        "ms, means over ranks, medians over steps: exposed is waiting, hidden ran beside "
        "computing";
    table.header = {"point", "group", "operation", "exposed", "hidden"};
    for (const Result& r : results) {
        if (!r.measured || !r.measured->communication) continue;
        for (const CommunicationTime& part : *r.measured->communication) {
            table.rows.push_back({names.point(r), part.group, part.operation,
                                  milliseconds(part.exposed), milliseconds(part.hidden)});
        }
    }
    table.words = {1, 2};
    return table;
}

PageTable model_table(const std::vector<Result>& results, const Names& names) {
    PageTable table;
    table.title = "Measured against modelled";
    table.note =
        "ms a step; the model is that of evenkeel scale plan, with the network that was "
        "measured, and on CPUs with rates that were";
    table.header = {"point",     "step",     "modelled", "",
                    "computing", "modelled", "waiting",  "modelled"};
    for (const Result& r : results) {
        if (!r.modelled) continue;
        const Measured& m = *r.measured;
        const double step = r.modelled->total();
        table.rows.push_back({names.point(r), milliseconds(m.seconds), milliseconds(step),
                              number("%+.1f %%", 100.0 * (step / m.seconds - 1.0)),
                              m.communication ? milliseconds(m.computing) : "",
                              milliseconds(r.modelled->computing() + r.modelled->overlap),
                              m.communication ? milliseconds(m.exposed()) : "",
                              milliseconds(r.modelled->tensor + r.modelled->data)});
    }
    return table;
}

std::vector<std::string> findings_of(const std::vector<Result>& results, const Names& names) {
    std::vector<std::string> findings;
    const Result* best = nullptr;
    std::map<std::string, double> peaks;
    std::vector<double> errors;
    bool take_turns = false;
    for (const Result& r : results) {
        if (!r.measured) continue;
        take_turns = take_turns || r.measured->oversubscribed;
        const bool counts = !r.measured->oversubscribed && !r.is_wrong();
        if (counts && (best == nullptr ||
                       r.measured->tokens_per_second() > best->measured->tokens_per_second())) {
            best = &r;
        }
        if (r.peak_flops > 0.0) {
            double& peak = peaks[r.peak_source];
            peak = std::max(peak, r.peak_flops);
        }
        if (r.modelled) errors.push_back(std::abs(r.modelled->total() / r.measured->seconds - 1.0));
    }
    if (best != nullptr) {
        findings.push_back(concat("Fastest: ", names.point(*best), ", ",
                                  count_text(best->measured->tokens_per_second()), " tokens/s."));
    }
    for (const auto& [source, peak] : peaks) {
        findings.push_back(concat(
            "MFU: the model's operations a token (6 a matrix element, causal attention counted "
            "once, nothing made again) x tokens/s / (ranks x peak); peak of a rank: ",
            source, ", ", number("%.4g", 1e-12 * peak), " TFLOP/s",
            source.find("measured") != std::string::npos ? " at most." : "."));
    }
    if (!errors.empty()) {
        std::sort(errors.begin(), errors.end());
        findings.push_back(concat("The model is off by ", percent_text(errors[errors.size() / 2]),
                                  " in the median of ", errors.size(), " points, at most by ",
                                  percent_text(errors.back()), "."));
    }
    if (take_turns) {
        findings.push_back(
            "Points with more ranks than cores are there for their losses: ranks take turns, and "
            "their times mean nothing. Plots over ranks leave them out.");
    }
    return findings;
}

}  // namespace

ReportPage page_of(const RunPlan& plan, const std::vector<Result>& results) {
    const Names names(results);
    ReportPage page;
    page.title = plan.title.empty() ? "Scaling study" : plan.title;
    std::size_t measured = 0, failed = 0, compared = 0;
    double most = 0.0;
    std::string device;
    for (const Result& r : results) {
        if (!r.failure.empty()) {
            ++failed;
            page.notices.push_back({concat(names.point(r), " failed: ", r.failure), true});
        }
        if (!r.measured) continue;
        ++measured;
        device = r.measured->device;
        compared += r.loss_reference.empty() ? 0 : 1;
        if (r.is_wrong()) {
            page.notices.push_back(
                {concat(names.point(r), " is wrong: its losses differ from those of ",
                        r.loss_reference, " by ", number("%.2g", r.loss_difference), ", more than ",
                        number("%.2g", r.loss_tolerance)),
                 true});
        }
        if (!r.measured->oversubscribed) most = std::max(most, r.utilisation);
    }
    page.subtitle = concat(plan.scaling == Scaling::kWeak ? "weak scaling" : "strong scaling",
                           device.empty() ? "" : ", on ", device, ", ", plan.steps,
                           " steps a point, ", plan.warmup_steps, " of them not timed");
    page.facts = {{concat(measured), "points measured"},
                  {concat(failed), "failed"},
                  {concat(compared), "with losses compared"},
                  {most > 0.0 ? percent_text(most) : "-", "largest MFU"}};
    page.findings = findings_of(results, names);
    page.figures = {
        figure_of("Tokens a second",
                  over_ranks(results, names, "tokens/s", ".4s",
                             [](const Result& r) { return r.measured->tokens_per_second(); })),
        speed_up_figure(results, names),
        figure_of("Efficiency", over_ranks(results, names, "%", ".3g",
                                           [](const Result& r) { return 100.0 * r.efficiency; })),
        figure_of("MFU", over_ranks(results, names, "%", ".3g",
                                    [](const Result& r) {
                                        return r.peak_flops > 0.0 ? 100.0 * r.utilisation : NAN;
                                    })),
        breakdown_figure(results, names),
        model_figure(results)};
    for (PageTable table : {points_table(results, names), communication_table(results, names),
                            model_table(results, names)}) {
        if (!table.rows.empty()) page.tables.push_back(std::move(table));
    }
    return page;
}

}  // namespace evenkeel::scale

namespace evenkeel {

using namespace scale;

int run_scale_report(const ScaleReportCommand& command) {
    const std::string& directory = command.directory;
    EVENKEEL_CHECK_CODE(std::filesystem::exists(directory + "/plan.json"), ErrorCode::kIo,
                        "scale report", directory,
                        ": is no directory of a study (it has no plan.json)");
    const RunPlan plan = load_run_plan(directory + "/plan.json", {});
    std::set<std::string> asked;
    for (const RunPoint& point : points_of(plan)) asked.insert(point.key);
    std::vector<Result> results;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory + "/points", error)) {
        const std::string name = entry.path().filename().string();
        if (!name.ends_with(".json") || name.ends_with(".config.json")) continue;
        // A plan that has been changed need not ask for all that there is.
        Result result = read_result(entry.path().string());
        if (asked.contains(result.key)) results.push_back(std::move(result));
    }
    EVENKEEL_CHECK_CODE(!results.empty(), ErrorCode::kIo, "scale report", directory,
                        "/points: holds no point's result");
    const auto order = [](const Result& r) {
        return std::tuple(r.key.substr(0, r.key.rfind("_s")), r.config.trainer.seq_len,
                          r.config.parallel.tensor_parallel, r.ranks);
    };
    std::sort(results.begin(), results.end(),
              [&](const Result& a, const Result& b) { return order(a) < order(b); });
    compare(plan, directory + "/network.json", results);
    write_file_atomically(directory + "/results.csv", to_csv(results));
    bool is_well = true;
    for (const Result& result : results) {
        if (result.is_wrong()) {
            log_warning(concat("point ", result.key, " is wrong: its losses differ from those of ",
                               result.loss_reference, " by ",
                               number("%.2g", result.loss_difference), ", more than ",
                               number("%.2g", result.loss_tolerance)));
        }
        is_well = is_well && result.failure.empty() && !result.is_wrong();
    }
    const std::string vega = find_vega();
    if (vega.empty()) {
        log_warning(concat("no report: ", kVegaMissing));
    } else {
        write_file_atomically(directory + "/report.html", to_html(page_of(plan, results), vega));
    }
    std::cout << "results  " << directory << "/results.csv\n";
    if (!vega.empty()) {
        std::cout << "report   " << std::filesystem::absolute(directory + "/report.html").string()
                  << "\n";
    }
    return is_well ? 0 : 1;
}

}  // namespace evenkeel
