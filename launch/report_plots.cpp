#include "launch/report_plots.h"

#include <algorithm>
#include <cmath>

#include "framework/json.h"
#include "launch/report_spec.h"

namespace evenkeel {

using Json = nlohmann::ordered_json;

Json rounded(double value) {
    if (!std::isfinite(value)) return nullptr;
    char text[32];
    std::snprintf(text, sizeof text, "%.5g", value);
    return std::strtod(text, nullptr);
}

Json signal(const std::string& expression) { return {{"signal", expression}}; }

Json base_spec(int height) {
    Json resize = {{"events", {{"source", "window"}, {"type", "resize"}}},
                   {"update", "containerSize()[0]"}};
    Json width = {{"name", "width"}, {"init", "containerSize()[0]"}, {"on", {resize}}};
    return {{"$schema", "https://vega.github.io/schema/vega/v5.json"},
            {"height", height},
            {"autosize", {{"type", "fit"}, {"contains", "padding"}}},
            {"padding", 2},
            {"signals", {width}}};
}

namespace {

Json step_axis() {
    return {{"orient", "bottom"},
            {"scale", "x"},
            {"title", "step"},
            {"format", ",d"},
            {"grid", false},
            {"labelOverlap", true},
            {"tickMinStep", 1},  // there is no step between two
            {"tickCount", signal("ceil(width / 90)")}};
}

Json axis_of_points(const LinePlot& plot) {
    Json axis = step_axis();
    axis["title"] = plot.x_title;
    if (plot.log_x) axis["format"] = "~g";
    if (plot.x_title != "step") axis.erase("tickMinStep");
    return axis;
}

Json point_values(const std::vector<Point>& points, const LinePlot& plot) {
    Json values = Json::array();
    for (const Point& p : points) {
        const bool drawable =
            (plot.scale != LinePlot::Scale::kLog || p.y > 0.0) && (!plot.log_x || p.x > 0.0);
        values.push_back({{"x", p.x}, {"y", drawable ? rounded(p.y) : nullptr}});
    }
    return values;
}

Json series_mark(const Series& series, const std::string& data) {
    const Json x = {{"scale", "x"}, {"field", "x"}};
    const Json y = {{"scale", "y"}, {"field", "y"}};
    const Json color = {{"value", series.color}};
    const bool broad_points = series.style == Series::Style::kBroadPoints;
    if (series.style == Series::Style::kPoints || broad_points) {
        return {{"type", "symbol"},
                {"from", {{"data", data}}},
                {"interactive", false},
                {"encode",
                 {{"update",
                   {{"x", x},
                    {"y", y},
                    {"size", {{"value", broad_points ? 150 : 46}}},
                    {"fill", color},
                    {"stroke", {{"value", "white"}}}}}}}};
    }
    Json update = {{"x", x},
                   {"y", y},
                   {"defined", signal("isValid(datum.y)")},
                   {"stroke", color},
                   {"strokeWidth", {{"value", series.style == Series::Style::kBroad ? 6.0 : 1.8}}},
                   {"strokeJoin", {{"value", "round"}}}};
    if (series.style == Series::Style::kDashed) update["strokeDash"] = {{"value", {5, 4}}};
    return {{"type", "line"},
            {"from", {{"data", data}}},
            {"interactive", false},
            {"encode", {{"update", update}}}};
}

// The dots of a marked series, each with its numbers.
Json dots_mark(const Series& series, const LinePlot& plot, const std::string& data) {
    const std::string tooltip = "{title: " + Json(series.name).dump() + ", " +
                                Json(plot.x_title).dump() + ": format(datum.x, '~g'), " +
                                Json(plot.unit).dump() + ": isValid(datum.y) ? format(datum.y, '" +
                                plot.format + "') : 'none'}";
    return {{"type", "symbol"},
            {"from", {{"data", data}}},
            {"encode",
             {{"update",
               {{"x", {{"scale", "x"}, {"field", "x"}}},
                {"y", {{"scale", "y"}, {"field", "y"}}},
                {"size", {{"value", 50}}},
                {"opacity", signal("isValid(datum.y) ? 1 : 0")},
                {"fill", {{"value", series.color}}},
                {"stroke", {{"value", "white"}}},
                {"tooltip", signal(tooltip)}}}}}};
}

// An invisible band per point over the plot's whole height: the reader need not hit the line.
Json hover_mark(const LinePlot& plot) {
    const Series& first = plot.series.front();
    const std::size_t count = std::max<std::size_t>(first.points.size(), 2);
    const double half =
        count > 1 && first.points.size() > 1
            ? (first.points.back().x - first.points.front().x) / static_cast<double>(count - 1) / 2
            : 0.5;
    const std::string half_text = Json(half).dump();
    Json update = {
        {"x", {{"scale", "x"}, {"signal", "datum.x - " + half_text}}},
        {"x2", {{"scale", "x"}, {"signal", "datum.x + " + half_text}}},
        {"y", {{"value", 0}}},
        {"y2", signal("height")},
        {"fill", {{"value", "transparent"}}},
        {"tooltip", signal("{title: 'step ' + format(datum.x, ',d'), " + Json(first.name).dump() +
                           ": format(datum.y, '" + plot.format + "')}")}};
    return {{"type", "rect"},
            {"from", {{"data", "series0"}}},
            {"clip", true},
            {"encode", {{"update", update}, {"hover", {{"fill", {{"value", "#0000000d"}}}}}}}};
}

Json mark_values(const std::vector<PlotMark>& marks) {
    Json values = Json::array();
    for (const PlotMark& mark : marks) {
        values.push_back({{"x", mark.from},
                          {"e", mark.to},
                          {"text", mark.text},
                          {"r", mark.first_row},
                          {"s", mark.last_row + 1}});
    }
    return values;
}

constexpr const char* kMarkColor = "#b3261e";
constexpr const char* kEmptyColor = "#e4e7eb";

// A line through the plot where something was first wrong, and a triangle that tells what.
void add_marks(const std::vector<PlotMark>& marks, Json& spec) {
    if (marks.empty()) return;
    const Json x = {{"scale", "x"}, {"field", "x"}};
    spec["data"].push_back({{"name", "marks"}, {"values", mark_values(marks)}});
    spec["marks"].push_back({{"type", "rule"},
                             {"from", {{"data", "marks"}}},
                             {"interactive", false},
                             {"encode",
                              {{"update",
                                {{"x", x},
                                 {"y", {{"value", 0}}},
                                 {"y2", signal("height")},
                                 {"stroke", {{"value", kMarkColor}}},
                                 {"strokeDash", {{"value", {3, 3}}}}}}}}});
    spec["marks"].push_back({{"type", "symbol"},
                             {"from", {{"data", "marks"}}},
                             {"encode",
                              {{"update",
                                {{"x", x},
                                 {"y", {{"value", 0}}},
                                 {"shape", {{"value", "triangle-down"}}},
                                 {"size", {{"value", 90}}},
                                 {"fill", {{"value", kMarkColor}}},
                                 {"tooltip", signal("{title: datum.text}")}}}}}});
}

// Splits n records into at most `limit` runs of equal length.
std::size_t bin_length(std::size_t n, std::size_t limit) {
    return std::max<std::size_t>(1, (n + limit - 1) / limit);
}

const char* key_mark(Series::Style style) {
    switch (style) {
        case Series::Style::kLine:
        case Series::Style::kMarked:
            return "line";
        case Series::Style::kBroad:
            return "broad";
        case Series::Style::kPoints:
            return "dot";
        case Series::Style::kBroadPoints:
            return "broad dot";
        case Series::Style::kDashed:
            return "dashed";
    }
    return "";
}

// Where columns begin, and where the last one ends. Steps lie in the middle of theirs, but the first and the last at the
// edge: the axis is that of the lines.
std::vector<double> edges_of(const HeatMap& map) {
    if (map.steps.empty()) return {0.0, 1.0};
    std::vector<double> edges;
    if (map.by_head) {
        edges = map.steps;
        edges.push_back(map.steps.back() + 1.0);
        return edges;
    }
    const double first = map.steps.front(), last = map.ends.back();
    if (first == last) return {first - 0.5, first + 0.5};
    edges.push_back(first);
    for (std::size_t c = 1; c < map.steps.size(); ++c) {
        edges.push_back((map.ends[c - 1] + map.steps[c]) / 2);
    }
    edges.push_back(last);
    return edges;
}

}  // namespace

std::string line_plot_spec(const LinePlot& plot) {
    Json spec = base_spec(230);
    Json data = Json::array();
    Json domain_x = Json::array();
    Json domain_y = Json::array();
    Json marks = Json::array(), above = Json::array();
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
        const std::string name = "series" + std::to_string(i);
        data.push_back({{"name", name}, {"values", point_values(plot.series[i].points, plot)}});
        domain_x.push_back({{"data", name}, {"field", "x"}});
        domain_y.push_back({{"data", name}, {"field", "y"}});
        const Series::Style style = plot.series[i].style;
        const bool below = style == Series::Style::kBroad || style == Series::Style::kBroadPoints;
        (below ? marks : above).push_back(series_mark(plot.series[i], name));
    }
    for (Json& mark : above) marks.push_back(std::move(mark));
    bool marked = false;
    for (std::size_t i = 0; i < plot.series.size(); ++i) {
        if (plot.series[i].style != Series::Style::kMarked) continue;
        marks.push_back(dots_mark(plot.series[i], plot, "series" + std::to_string(i)));
        marked = true;
    }
    if (!marked) marks.push_back(hover_mark(plot));
    spec["data"] = data;
    spec["scales"] = {{{"name", "x"},
                       {"type", plot.log_x ? "log" : "linear"},
                       {"range", "width"},
                       {"domain", {{"fields", domain_x}}},
                       {"zero", false}},
                      {{"name", "y"},
                       {"type", plot.scale == LinePlot::Scale::kLog ? "log" : "linear"},
                       {"range", "height"},
                       {"domain", {{"fields", domain_y}}},
                       {"nice", 5},
                       {"zero", plot.scale == LinePlot::Scale::kFromZero}}};
    spec["axes"] = {axis_of_points(plot),
                    {{"orient", "left"},
                     {"scale", "y"},
                     {"tickCount", 5},
                     {"grid", true},
                     {"title", plot.unit},
                     {"minExtent", 34}}};
    spec["marks"] = marks;
    add_marks(plot.marks, spec);
    return spec.dump();
}

Figure figure_of(const std::string& title, const LinePlot& plot) {
    Figure figure;
    figure.title = title;
    if (plot.series.front().points.empty()) return figure;
    LinePlot drawn = plot;
    std::erase_if(drawn.series, [](const Series& series) { return series.points.empty(); });
    if (drawn.series.size() > 1) {
        for (const Series& series : drawn.series) {
            figure.keys.push_back({series.name, series.color, key_mark(series.style)});
        }
    }
    figure.spec = line_plot_spec(drawn);
    return figure;
}

std::string heat_map_spec(const HeatMap& map) {
    const std::int64_t rows = map.layers * map.heads;
    const int height = static_cast<int>(std::clamp<std::int64_t>(rows * 7, 150, 420));
    Json values = Json::array();
    const std::vector<double> edges = edges_of(map);
    for (std::size_t c = 0; c < map.columns.size(); ++c) {
        Json column = Json::array();
        for (const float value : map.columns[c]) column.push_back(rounded(value));
        values.push_back(
            {{"x", edges[c]}, {"e", edges[c + 1]}, {"t", map.steps[c]}, {"v", column}});
    }
    Json layer_ticks = Json::array();
    Json layer_starts = Json::array();
    for (std::int64_t layer = 0; layer < map.layers; ++layer) {
        const auto start = static_cast<double>(layer * map.heads);
        layer_ticks.push_back(start + static_cast<double>(map.heads) / 2);
        if (layer > 0) layer_starts.push_back({{"row", start}});
    }
    const std::string heads = std::to_string(map.heads);

    Json spec = base_spec(height);
    const Json flatten = {{"type", "flatten"}, {"fields", {"v"}}, {"index", "r"}};
    spec["data"] = {{{"name", "cells"}, {"values", values}, {"transform", {flatten}}},
                    {{"name", "layers"}, {"values", layer_starts}}};
    Json colors = {{"data", "cells"}, {"field", "v"}};
    if (!map.domain.empty()) colors = map.domain;
    spec["scales"] = {{{"name", "x"},
                       {"type", "linear"},
                       {"range", "width"},
                       {"domain", {edges.front(), edges.back()}},
                       {"zero", false}},
                      {{"name", "y"},
                       {"type", "linear"},
                       {"range", "height"},
                       {"reverse", true},
                       {"domain", {0, rows}}},
                      {{"name", "color"},
                       {"type", "linear"},
                       {"range", {{"scheme", "yellowgreenblue"}}},
                       {"domain", colors},
                       {"clamp", true},
                       {"reverse", map.low_is_dark},
                       {"zero", false}}};
    Json columns = step_axis();
    if (map.by_head) {
        Json middles = Json::array();
        for (const double head : map.steps) middles.push_back(head + 0.5);
        columns["title"] = "head";
        columns["values"] = middles;
        columns["ticks"] = false;
        columns["encode"]["labels"]["update"]["text"] = signal("floor(datum.value)");
    }
    spec["axes"] = {
        columns,
        {{"orient", "left"},
         {"scale", "y"},
         {"values", layer_ticks},
         {"ticks", false},
         {"labelOverlap", true},
         {"minExtent", 34},
         {"encode",
          {{"labels",
            {{"update", {{"text", signal("'layer ' + floor(datum.value / " + heads + ")")}}}}}}}}};
    spec["legends"] = {{{"fill", "color"},
                        {"type", "gradient"},
                        {"orient", "top"},
                        {"direction", "horizontal"},
                        {"gradientLength", 240},
                        {"gradientThickness", 10},
                        {"title", map.unit},
                        {"titleOrient", "left"},
                        {"tickCount", 3},
                        {"labelOverlap", "greedy"},
                        {"labelSeparation", 8}}};
    const std::string place =
        map.by_head ? "{title: 'head ' + datum.t, layer: datum.r"
                    : "{title: 'step ' + format(datum.t, ',d'), layer: floor(datum.r / " + heads +
                          "), head: datum.r % " + heads;
    const std::string empty =
        "indexof(" + Json(map.empty_layers).dump() + ", floor(datum.r / " + heads + ")) >= 0";
    const std::string tooltip = place + ", value: " + empty +
                                " ? 'none' : isValid(datum.v) ? format(datum.v, '" + map.format +
                                "') : 'not finite'}";
    spec["marks"] = {{{"type", "rect"},
                      {"from", {{"data", "cells"}}},
                      {"encode",
                       {{"update",
                         {{"x", {{"scale", "x"}, {"field", "x"}}},
                          {"x2", {{"scale", "x"}, {"field", "e"}, {"offset", 0.5}}},
                          {"y", {{"scale", "y"}, {"field", "r"}}},
                          {"y2", {{"scale", "y"}, {"signal", "datum.r + 1"}, {"offset", 0.5}}},
                          {"fill",
                           {{{"test", empty}, {"value", kEmptyColor}},
                            {{"test", "!isValid(datum.v)"}, {"value", kMarkColor}},
                            {{"scale", "color"}, {"field", "v"}}}},
                          {"tooltip", signal(tooltip)}}}}}},
                     {{"type", "rule"},
                      {"from", {{"data", "layers"}}},
                      {"interactive", false},
                      {"encode",
                       {{"update",
                         {{"x", {{"value", 0}}},
                          {"x2", signal("width")},
                          {"y", {{"scale", "y"}, {"field", "row"}}},
                          {"stroke", {{"value", "white"}}},
                          {"strokeWidth", {{"value", 1.5}}}}}}}}};
    std::vector<PlotMark> boxes = map.marks;
    std::erase_if(boxes, [](const PlotMark& mark) { return mark.first_row < 0; });
    if (!boxes.empty()) {
        spec["data"].push_back({{"name", "boxes"}, {"values", mark_values(boxes)}});
        spec["marks"].push_back({{"type", "rect"},
                                 {"from", {{"data", "boxes"}}},
                                 {"interactive", false},
                                 {"encode",
                                  {{"update",
                                    {{"x", {{"scale", "x"}, {"field", "x"}}},
                                     {"x2", {{"scale", "x"}, {"field", "e"}}},
                                     {"y", {{"scale", "y"}, {"field", "r"}}},
                                     {"y2", {{"scale", "y"}, {"field", "s"}}},
                                     {"stroke", {{"value", kMarkColor}}},
                                     {"strokeWidth", {{"value", 1.5}}},
                                     {"fill", {{"value", "transparent"}}}}}}}});
    }
    add_marks(map.marks, spec);
    return spec.dump();
}

std::vector<Point> scalar_points(const std::vector<MetricRecord>& records,
                                 const std::string& name,
                                 std::size_t limit) {
    std::vector<Point> all;
    for (const MetricRecord& record : records) {
        for (const auto& [key, value] : record.scalars) {
            if (key == name) all.push_back({static_cast<double>(record.step), value});
        }
    }
    const std::size_t length = bin_length(all.size(), limit);
    std::vector<Point> points;
    for (std::size_t begin = 0; begin < all.size(); begin += length) {
        const std::size_t end = std::min(begin + length, all.size());
        Point mean{0.0, 0.0};
        for (std::size_t i = begin; i < end; ++i) {
            mean.x += all[i].x / static_cast<double>(end - begin);
            mean.y += all[i].y / static_cast<double>(end - begin);
        }
        points.push_back(mean);
    }
    return points;
}

HeatMap table_map(const std::vector<MetricRecord>& records,
                  const std::string& name,
                  bool lowest,
                  std::size_t limit,
                  std::size_t cells) {
    HeatMap map;
    std::vector<std::pair<double, const MetricTable*>> tables;
    for (const MetricRecord& record : records) {
        for (const MetricTable& table : record.tables) {
            if (table.name == name) tables.emplace_back(record.step, &table);
        }
    }
    if (tables.empty()) return map;
    map.layers = tables.front().second->rows;
    map.heads = tables.front().second->columns;
    const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(map.layers * map.heads, 1));
    const std::size_t columns = std::min(limit, std::max<std::size_t>(cells / rows, 24));
    const std::size_t length = bin_length(tables.size(), columns);
    for (std::size_t begin = 0; begin < tables.size(); begin += length) {
        std::vector<float> column = tables[begin].second->values;
        for (std::size_t i = begin + 1; i < std::min(begin + length, tables.size()); ++i) {
            const std::vector<float>& values = tables[i].second->values;
            for (std::size_t k = 0; k < std::min(column.size(), values.size()); ++k) {
                // NaN stays to be seen.
                const bool takes = lowest ? values[k] < column[k] : values[k] > column[k];
                if (takes || std::isnan(values[k])) column[k] = values[k];
            }
        }
        map.steps.push_back(tables[begin].first);
        map.ends.push_back(tables[std::min(begin + length, tables.size()) - 1].first);
        map.columns.push_back(std::move(column));
    }
    return map;
}

}  // namespace evenkeel
