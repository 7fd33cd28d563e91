#include "launch/report_heads.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "launch/commands.h"

namespace evenkeel {
namespace {

// How a table is shown as a heat map.
struct TableLook {
    const char* name;
    const char* title;
    const char* unit;
    const char* format;
    bool lowest = false;  // what matters when several records share a column
    bool share = false;   // from 0 to 1
};

struct Group {
    const char* title;
    std::vector<TableLook> tables;  // the first one that is there stands open, the others fold
};

const std::vector<Group>& groups() {
    static const std::vector<Group> all = {
        {"Logits",
         {{"max_logit", "Largest logit", "logit", ".3f"},
          {"max_logit_uncapped", "Largest logit before the cap", "logit", ".3f"},
          {"logit_bound", "Bound on logits", "logit", ".3f"},
          {"clipped", "Updates that QK-Clip scaled back, since the last record", "updates",
           ".0f"}}},
        {"Entropy",
         {{"entropy_share", "Entropy over that of even attention", "share", ".3f", true, true},
          {"entropy", "Entropy", "nats", ".3f", true},
          {"saturation", "Rows that see one key alone", "share", ".4f", false, true}}},
        {"Gains",
         {{"q_gain_rms", "Gain of q, rms", "gain", ".3f"},
          {"k_gain_rms", "Gain of k, rms", "gain", ".3f"},
          {"q_gain_max", "Gain of q, largest", "gain", ".3f"},
          {"k_gain_max", "Gain of k, largest", "gain", ".3f"},
          {"q_gain_min", "Gain of q, smallest", "gain", ".3f", true},
          {"k_gain_min", "Gain of k, smallest", "gain", ".3f", true}}},
        {"Norms",
         {{"q_rms", "q as projected, mean rms", "rms", ".3g"},
          {"k_rms", "k as projected, mean rms", "rms", ".3g"},
          {"q_rms_min", "q as projected, smallest rms", "rms", ".3g", true},
          {"k_rms_min", "k as projected, smallest rms", "rms", ".3g", true},
          {"wq_norm", "Norm of a head's W_q", "norm", ".3f"},
          {"wk_norm", "Norm of a head's W_k", "norm", ".3f"},
          {"wq_bias_norm", "Norm of a head's bias of q", "norm", ".3f"},
          {"wk_bias_norm", "Norm of a head's bias of k", "norm", ".3f"}}}};
    return all;
}

enum class Of { kLeast, kMean, kMost };

// One number of a table a step.
Series line_of(const std::vector<MetricRecord>& records,
               const char* table,
               Of what,
               const char* name,
               const char* color,
               Series::Style style = Series::Style::kLine) {
    Series series{name, color, {}, style};
    const HeatMap map =
        table_map(records, table, what == Of::kLeast, 300, std::numeric_limits<std::size_t>::max());
    for (std::size_t i = 0; i < map.columns.size(); ++i) {
        // A layer without a norm has no gains and no bound.
        std::vector<float> column;
        std::copy_if(map.columns[i].begin(), map.columns[i].end(), std::back_inserter(column),
                     [](float value) { return std::isfinite(value); });
        if (column.empty()) column = map.columns[i];
        const auto [low, high] = std::minmax_element(column.begin(), column.end());
        double value = what == Of::kLeast ? *low : *high;
        if (what == Of::kMean) {
            value = 0.0;
            for (const float one : column) value += one;
            value /= static_cast<double>(column.size());
        }
        series.points.push_back({map.steps[i], value});
    }
    return series;
}

LinePlot lines_of(const std::string& group, const std::vector<MetricRecord>& records) {
    LinePlot plot;
    plot.format = ".3f";
    const auto dashed = Series::Style::kDashed;
    if (group == "Logits") {
        plot.unit = "logit";
        plot.series = {
            line_of(records, "max_logit", Of::kMost, "largest of all heads", kBlue),
            line_of(records, "max_logit", Of::kMean, "mean of all heads", kGreen),
            line_of(records, "max_logit_uncapped", Of::kMost, "largest before the cap", kGrey),
            line_of(records, "logit_bound", Of::kMost, "largest bound", kOrange, dashed)};
    } else if (group == "Entropy") {
        plot.unit = "share of even attention's";
        plot.scale = LinePlot::Scale::kFromZero;
        plot.series = {line_of(records, "entropy_share", Of::kLeast, "lowest head", kBlue),
                       line_of(records, "entropy_share", Of::kMean, "mean of all heads", kGreen),
                       line_of(records, "saturation", Of::kMost, "most rows that see one key alone",
                               kOrange, dashed)};
    } else if (group == "Gains") {
        plot.unit = "gain";
        plot.series = {line_of(records, "q_gain_max", Of::kMost, "q, largest", kBlue),
                       line_of(records, "q_gain_rms", Of::kMean, "q, mean rms", kBlue, dashed),
                       line_of(records, "k_gain_max", Of::kMost, "k, largest", kOrange),
                       line_of(records, "k_gain_rms", Of::kMean, "k, mean rms", kOrange, dashed)};
    } else {
        plot.unit = "rms as projected";
        plot.format = ".3g";
        plot.scale = LinePlot::Scale::kLog;
        plot.series = {line_of(records, "q_rms", Of::kMean, "q, mean", kBlue),
                       line_of(records, "q_rms_min", Of::kLeast, "q, smallest", kBlue, dashed),
                       line_of(records, "k_rms", Of::kMean, "k, mean", kOrange),
                       line_of(records, "k_rms_min", Of::kLeast, "k, smallest", kOrange, dashed)};
    }
    return plot;
}

Figure map_figure(const std::vector<MetricRecord>& records, const TableLook& look) {
    HeatMap map = table_map(records, look.name, look.lowest);
    Figure figure;
    figure.title = look.title;
    if (map.columns.empty()) return figure;
    figure.subtitle =
        concat(look.name, ", a row per ",
               std::string(look.name).find('k') == 0 || look.name[1] == 'k' ? "key head" : "head",
               ", layers from the top");
    map.unit = look.unit;
    map.format = look.format;
    map.low_is_dark = look.lowest;
    if (look.share) map.domain = {0.0, 1.0};
    map.marks = alarm_marks(records, {look.name});
    for (PlotMark& mark : map.marks) {
        // Out of bounds was one head, or the mean of a layer.
        if (mark.first_row < 0) continue;
        const bool of_layer = mark.last_row < 0;
        const std::int64_t layer = mark.first_row;
        mark.first_row = layer * map.heads + (of_layer ? 0 : mark.last_row);
        mark.last_row = of_layer ? (layer + 1) * map.heads - 1 : mark.first_row;
    }
    figure.spec = heat_map_spec(map);
    figure.raster = true;
    return figure;
}

// Two rules may have one name: gains of q and of k drift each by themselves.
using AlarmKey = std::pair<std::string, std::string>;
AlarmKey key_of(const AlarmEvent& event) { return {event.alarm, event.metric}; }

std::string place_text(std::int64_t step) { return concat("step ", step, ": "); }

}  // namespace

std::vector<Notice> alarm_notices(const std::vector<MetricRecord>& records) {
    std::vector<Notice> notices;
    std::map<AlarmKey, std::size_t> open;  // which notice
    for (const MetricRecord& record : records) {
        for (const AlarmEvent& event : record.alarms) {
            const auto found = open.find(key_of(event));
            if (event.raised) {
                open[key_of(event)] = notices.size();
                notices.push_back({place_text(record.step) + event.text, true});
            } else if (found != open.end()) {
                notices[found->second].text += concat("; over at step ", record.step);
                notices[found->second].open = false;
                open.erase(found);
            }
        }
    }
    return notices;
}

std::vector<PlotMark> alarm_marks(const std::vector<MetricRecord>& records,
                                  const std::vector<std::string>& metrics) {
    std::vector<PlotMark> marks;
    std::map<AlarmKey, std::size_t> open;  // which mark
    for (const MetricRecord& record : records) {
        for (const AlarmEvent& event : record.alarms) {
            const bool wanted = metrics.empty() || std::find(metrics.begin(), metrics.end(),
                                                             event.metric) != metrics.end();
            if (!wanted) continue;
            const auto found = open.find(key_of(event));
            if (event.raised) {
                open[key_of(event)] = marks.size();
                marks.push_back({static_cast<double>(record.step),
                                 static_cast<double>(records.back().step),
                                 place_text(record.step) + event.text, event.row, event.column});
            } else if (found != open.end()) {
                marks[found->second].to = static_cast<double>(record.step);
                open.erase(found);
            }
        }
    }
    return marks;
}

std::vector<Figure> head_figures(const std::vector<MetricRecord>& records) {
    std::vector<Figure> figures;
    for (const Group& group : groups()) {
        std::vector<Figure> maps;
        std::vector<std::string> names;
        for (const TableLook& look : group.tables) {
            Figure figure = map_figure(records, look);
            if (figure.spec.empty()) continue;
            figure.group = group.title;
            figure.folded = !maps.empty();
            maps.push_back(std::move(figure));
            names.emplace_back(look.name);
        }
        if (maps.empty()) continue;
        LinePlot plot = lines_of(group.title, records);
        std::erase_if(plot.series, [](const Series& series) { return series.points.empty(); });
        if (!plot.series.empty()) {
            plot.marks = alarm_marks(records, names);
            Figure lines = figure_of("Over all heads", plot);
            lines.group = group.title;
            figures.push_back(std::move(lines));
        }
        figures.insert(figures.end(), maps.begin(), maps.end());
    }
    return figures;
}

}  // namespace evenkeel
