// Plots as Vega specifications (JSON text): scales, axes and tooltips are Vega's, the width is the
// container's.
#pragma once

#include <string>
#include <vector>

#include "framework/training/metrics.h"
#include "launch/report_page.h"

namespace evenkeel {

// Colors of series.
constexpr const char* kBlue = "#2864b0";
constexpr const char* kOrange = "#d9730d";
constexpr const char* kGreen = "#2d8659";
constexpr const char* kGrey = "#7a8591";

struct Point {
    double x, y;
};

struct Series {
    std::string name;
    std::string color;
    std::vector<Point> points;
    // kMarked: a line whose every point is a dot that answers the mouse. kBroad and kBroadPoints: below all others and
    // wider, so that one that lies on them hides nothing.
    enum class Style { kLine, kPoints, kDashed, kMarked, kBroad, kBroadPoints };
    Style style = Style::kLine;
};

// Where something was wrong on the way, from the step at which it was told.
struct PlotMark {
    double from, to;  // steps
    std::string text;
    std::int64_t first_row = -1, last_row = -1;  // of a heat map; -1: none
};

struct LinePlot {
    std::vector<Series> series;  // the first one answers the mouse, unless there are marked ones
    std::string unit;            // of the vertical axis
    std::string format;          // of values in tooltips, d3-format
    enum class Scale { kData, kFromZero, kLog } scale = Scale::kData;
    std::string x_title = "step";
    bool log_x = false;
    std::vector<PlotMark> marks;
};
std::string line_plot_spec(const LinePlot& plot);
// The plot with its legend; one that says so where the first series has no points.
Figure figure_of(const std::string& title, const LinePlot& plot);

// One row per (layer, head), one column per step or bin of steps.
struct HeatMap {
    std::int64_t layers = 0;
    std::int64_t heads = 0;
    std::vector<double> steps;                // first step of each column
    std::vector<double> ends = {};            // and its last one; none where columns are heads
    std::vector<std::vector<float>> columns;  // [steps][layers * heads]
    std::string unit;
    std::string format;
    bool by_head = false;        // columns are heads, `heads` is 1
    std::vector<double> domain;  // of the colours: {least, largest}; empty: that of the values
    bool low_is_dark = false;    // the eye goes to what is dark
    std::vector<std::int64_t> empty_layers = {};  // that have no such numbers: grey
    std::vector<PlotMark> marks;
};
// Numbers that are not finite are red.
std::string heat_map_spec(const HeatMap& map);

// All records' values of one scalar, at most `limit` points: means of equal bins of steps.
std::vector<Point> scalar_points(const std::vector<MetricRecord>& records,
                                 const std::string& name,
                                 std::size_t limit = 600);
// The table `name` of all records; several records in one column give their largest value, or the lowest.
// At most `limit` columns, and fewer where there are many heads: `cells` in all, but 24 columns at least.
HeatMap table_map(const std::vector<MetricRecord>& records,
                  const std::string& name,
                  bool lowest,
                  std::size_t limit = 120,
                  std::size_t cells = 24000);

}  // namespace evenkeel
