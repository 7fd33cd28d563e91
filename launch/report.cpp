// evenkeel report: a run's numbers as one HTML page.
#include "launch/report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <optional>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "launch/recovery.h"
#include "launch/report_comparison.h"
#include "launch/report_heads.h"
#include "launch/report_page.h"
#include "launch/report_plots.h"
#include "launch/saved_run.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kPalePurple = "#e7a9ce";
constexpr const char* kPaleOrange = "#f3cfae";

struct RunData {
    std::vector<MetricRecord> records;
    RunConfig config;
    Json summary;  // null while the run has not ended
};

// What import and retrofit make has made no step; its configuration trains in a directory below.
void check_trained(const std::string& directory) {
    EVENKEEL_CHECK_CODE(fs::is_directory(directory), ErrorCode::kIo, "report", directory,
                        ": no such directory, want a run");
    const fs::path run(directory);
    if (fs::exists(run / "metrics.jsonl")) return;
    std::string trained;
    for (const char* name : {"continued", "trained"}) {
        if (fs::exists(run / name / "metrics.jsonl")) trained = (run / name).string();
    }
    throw_error(ErrorCode::kIo, "report",
                concat(directory, ": has made no step (it has no metrics.jsonl); ",
                       trained.empty() ? std::string("train it first") : "want " + trained));
}

RunData read_run(const std::string& directory) {
    check_trained(directory);
    RunData run;
    run.records = read_metrics(directory + "/metrics.jsonl");
    EVENKEEL_CHECK_CODE(!run.records.empty(), ErrorCode::kIo, "report", directory,
                        "/metrics.jsonl: holds no step");
    run.config = load_run_config(directory + "/config.json", {});
    const std::string summary = directory + "/summary.json";
    if (fs::exists(summary)) {
        run.summary = Json::parse(read_file(summary), nullptr, false);
        EVENKEEL_CHECK_CODE(run.summary.is_object(), ErrorCode::kIo, "report", summary,
                            ": is not JSON");
        for (const char* key : {"validation_loss", "bigram_entropy", "unigram_entropy",
                                "parameters", "tokens_per_second", "ranks", "threads_per_rank"}) {
            const Json value = run.summary.value(key, Json());
            EVENKEEL_CHECK_CODE(run.summary.contains(key) && (value.is_number() || value.is_null()),
                                ErrorCode::kIo, "report", summary, ": ", key, ": got ",
                                value.dump(), ", want a number");
        }
    }
    return run;
}

// NaN, which JSON writes as null, where it was not measured; so too where a version had no such number.
double summary_number(const RunData& run, const std::string& key) {
    const Json value = run.summary.value(key, Json());
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::vector<Point> level_line(const std::vector<Point>& along, double y) {
    return {{along.front().x, y}, {along.back().x, y}};
}

std::string sentence(const CurveDifference& difference, const std::string& other) {
    return concat("Against ", other, ": the largest relative difference of the loss is ",
                  format("%.2g", difference.largest), " (step ", difference.worst_step,
                  ") over the ", difference.steps, " steps both have.");
}

// other: to compare with, or none.
Figure loss_figure(const RunData& run, const RunData* other, const ReportCommand& command) {
    LinePlot plot;
    plot.format = ".4f";
    plot.unit = loss_unit(run.config);
    const std::vector<Point> loss = scalar_points(run.records, "loss");
    const bool compares = other != nullptr;
    plot.series.push_back({compares ? concat("training, ", command.run) : "training", kBlue, loss});
    plot.series.push_back({compares ? concat("validation, ", command.run) : "validation", kOrange,
                           scalar_points(run.records, "validation_loss"), Series::Style::kPoints});
    if (run.summary.is_object() && !loss.empty()) {
        for (const auto& [key, color] : {std::pair{"bigram", kGreen}, {"unigram", kGrey}}) {
            const double entropy = summary_number(run, concat(key, "_entropy"));
            if (std::isnan(entropy)) continue;  // of tokens
            plot.series.push_back({concat(key, " entropy of the validation text"), color,
                                   level_line(loss, entropy), Series::Style::kDashed});
        }
    }
    std::string note;
    if (compares) {
        const CurveDifference difference = compare_losses(run.records, other->records);
        note = sentence(difference, command.compare);
        plot.series.push_back({concat("training, ", command.compare), kPalePurple,
                               scalar_points(other->records, "loss"), Series::Style::kBroad});
        plot.series.push_back({concat("validation, ", command.compare), kPaleOrange,
                               scalar_points(other->records, "validation_loss"),
                               Series::Style::kBroadPoints});
    }
    plot.marks = alarm_marks(run.records);
    Figure figure = figure_of("Loss", plot);
    figure.note = note;
    figure.wide = true;
    return figure;
}

Figure scalar_figure(const RunData& run,
                     const std::string& name,
                     const std::string& title,
                     const std::string& unit,
                     const std::string& number_format,
                     LinePlot::Scale scale = LinePlot::Scale::kFromZero) {
    LinePlot plot;
    plot.format = number_format;
    plot.unit = unit;
    plot.scale = scale;
    plot.series.push_back({title, kBlue, scalar_points(run.records, name)});
    plot.marks =
        alarm_marks(run.records, {name, name + "_deviations", name + "_deviations_lasting"});
    return figure_of(title, plot);
}

std::vector<Fact> facts_of(const RunData& run) {
    std::vector<Fact> facts;
    if (!run.summary.is_object()) return facts;
    const auto number = [&](const char* key) { return summary_number(run, key); };
    const bool of_tokens = run.config.data.has_tokens();
    // Those that a run that ended early has not measured are left out.
    const auto add = [&](const char* key, const char* pattern, const std::string& title) {
        const double value = number(key);
        if (std::isfinite(value)) facts.push_back({format(pattern, value), title});
    };
    add("validation_loss", "%.4f",
        of_tokens ? "validation loss, nats/token" : "validation loss, nats/byte");
    if (!of_tokens) {
        add("bigram_entropy", "%.4f", "bigram entropy, nats/byte");
        add("unigram_entropy", "%.4f", "unigram entropy, nats/byte");
    }
    if (const auto score = scalar_points(run.records, "loss_spike_score"); !score.empty()) {
        facts.push_back({format("%.2g %%", score.back().y),
                         "loss spike score: steps 7 deviations or more off the mean"});
    }
    facts.push_back({grouped(std::llround(number("parameters"))), "parameters"});
    if (const double speed = number("tokens_per_second"); std::isfinite(speed)) {
        facts.push_back({grouped(std::llround(speed)), "tokens/s, median"});
    }
    add("tflops_per_rank", "%.3g", "TFLOP/s a rank, of the model's operations");
    facts.push_back(
        {concat(number("ranks"), " × ", number("threads_per_rank")), "ranks × threads"});
    return facts;
}

// What ended a run before its last step: among what was wrong, or where somebody wanted it so beside the title.
void add_end(const RunData& run, ReportPage& page) {
    if (!run.summary.is_object() || !run.summary.contains("ended_by")) return;
    const Json& by = run.summary.at("ended_by");
    if (!by.is_string()) return;
    std::string text = by.get<std::string>();
    if (!text.starts_with("[")) {
        page.subtitle += " · ended by " + text;
        return;
    }
    text.erase(0, std::min(text.size(), text.find("] ") + 2));
    page.notices.insert(page.notices.begin(), {concat("The run was ended: ", text), true});
}

RunDifferences differences(const std::string& run,
                           const RunData& of_run,
                           const std::string& other,
                           const RunData& of_other) {
    return differences(run, of_run.config, of_run.summary, other, of_other.config,
                       of_other.summary);
}

}  // namespace

std::string find_vega() {
    const char* named = std::getenv("EVENKEEL_VEGA_DIR");
    const std::string directory = named ? named : "/usr/share/javascript/vega";
    return fs::exists(directory + "/vega-view.min.js") ? directory : "";
}

CurveDifference compare_losses(const std::vector<MetricRecord>& a,
                               const std::vector<MetricRecord>& b) {
    std::map<std::int64_t, double> losses;
    for (const MetricRecord& record : b) {
        for (const auto& [name, value] : record.scalars) {
            if (name == "loss") losses[record.step] = value;
        }
    }
    CurveDifference difference;
    for (const MetricRecord& record : a) {
        const auto other = losses.find(record.step);
        if (other == losses.end()) continue;
        for (const auto& [name, value] : record.scalars) {
            if (name != "loss") continue;
            ++difference.steps;
            const double apart = std::abs(value - other->second) / std::abs(other->second);
            if (!(apart <= difference.largest)) {
                difference.largest = apart;
                difference.worst_step = record.step;
            }
        }
    }
    return difference;
}

std::string write_report(const ReportCommand& command) {
    const std::string vega = find_vega();
    EVENKEEL_CHECK_CODE(!vega.empty(), ErrorCode::kIo, "report", kVegaMissing);
    const RunData run = read_run(command.run);
    std::optional<RunData> other;
    if (!command.compare.empty()) other = read_run(command.compare);
    ReportPage page;
    page.title = "Evenkeel run: " + command.run;
    page.subtitle = concat("steps ", run.records.front().step, " to ", run.records.back().step,
                           " of ", run.config.trainer.steps, " · text ", run.config.data.path);
    page.facts = facts_of(run);
    page.notices = alarm_notices(run.records);
    add_end(run, page);
    page.figures = {
        loss_figure(run, other ? &*other : nullptr, command),
        scalar_figure(run, "lr", "Learning rate", "learning rate", ".3g"),
        scalar_figure(run, "grad_norm", "Gradient norm", "L2, before clipping", ".3f",
                      LinePlot::Scale::kLog),
    };
    if (other) {
        const RunDifferences found = differences(command.run, run, command.compare, *other);
        if (!found.data.empty()) page.findings.push_back(found.data);
        page.tables.push_back(table_of(found, command.run, command.compare));
        const Recovery recovery = recovery_of(run.records, other->records);
        if (!recovery.excess.empty()) {
            page.figures.insert(page.figures.begin() + 1,
                                recovery_figure(recovery, command.compare, loss_unit(run.config)));
        }
    }
    if (!scalar_points(run.records, "qk_norm_lambda").empty()) {
        page.figures.push_back(
            scalar_figure(run, "qk_norm_lambda", "How far the norm has come in", "lambda", ".3f"));
    }
    for (Figure& figure : head_figures(run.records)) page.figures.push_back(std::move(figure));
    page.figures.push_back(
        scalar_figure(run, "tokens_per_second", "Tokens per second", "tokens per second", ",.0f"));
    page.figures.back().group = "Speed";
    page.figures.back().wide = true;
    if (run.summary.is_object()) page.sample = run.summary.value("sample", "");
    page.settings = settings_of(run.config);

    const std::string path = command.output.empty() ? command.run + "/report.html" : command.output;
    write_file_atomically(path, to_html(page, vega));
    return path;
}

void run_report(const ReportCommand& command) {
    check_trained(command.run);
    nlohmann::ordered_json json;
    std::string text;
    if (!command.compare.empty()) {
        const RunData of_run = read_run(command.run), of_other = read_run(command.compare);
        const RunDifferences found = differences(command.run, of_run, command.compare, of_other);
        const std::vector<MetricRecord>&run = of_run.records, &other = of_other.records;
        const CurveDifference difference = compare_losses(run, other);
        EVENKEEL_CHECK_CODE(difference.steps > 0, ErrorCode::kIo, "report", command.run, " and ",
                            command.compare, ": have no step in common");
        const Recovery recovery = recovery_of(run, other);
        text = concat("loss of ", command.run, " against ", command.compare,
                      "\nlargest relative difference over ", difference.steps,
                      " steps: ", format("%.2g", difference.largest), " (at step ",
                      difference.worst_step, ")\n", text_of(recovery, command.compare),
                      text_of(found, command.run, command.compare));
        json = {{"run", command.run},
                {"compare", command.compare},
                {"steps", difference.steps},
                {"largest_relative_difference", difference.largest},
                {"at_step", difference.worst_step}};
        json.update(to_json(recovery));
        json.update(to_json(found));
    }
    if (!command.json) std::cout << text;
    const std::string page = fs::absolute(write_report(command)).lexically_normal().string();
    if (!command.json) {
        std::cout << "report  " << page << "\n";
        return;
    }
    json["run"] = command.run;
    json["report"] = page;
    std::cout << json.dump(2) << "\n";
}

}  // namespace evenkeel
