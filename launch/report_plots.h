// Plots as Vega specifications (JSON text): scales, axes and tooltips are Vega's, the width is the
// container's.
#pragma once

#include <string>
#include <vector>

#include "framework/metrics.h"
#include "launch/report_page.h"

namespace evenkeel {

struct Point {
    double x, y;
};

struct Series {
    std::string name;
    std::string color;
    std::vector<Point> points;
    // kMarked: a line whose every point is a dot that answers the mouse.
    enum class Style { kLine, kPoints, kDashed, kMarked } style = Style::kLine;
};

struct LinePlot {
    std::vector<Series> series;  // the first one answers the mouse, unless there are marked ones
    std::string unit;            // of the vertical axis
    std::string format;          // of values in tooltips, d3-format
    enum class Scale { kData, kFromZero, kLog } scale = Scale::kData;
    std::string x_title = "step";
    bool log_x = false;
};
std::string line_plot_spec(const LinePlot& plot);
// The plot with its legend; one that says so where the first series has no points.
Figure figure_of(const std::string& title, const LinePlot& plot);

// One row per (layer, head), one column per step or bin of steps.
struct HeatMap {
    std::int64_t layers = 0;
    std::int64_t heads = 0;
    std::vector<double> steps;                // first step of each column
    std::vector<std::vector<float>> columns;  // [steps][layers * heads]
    std::string unit;
    std::string format;
};
std::string heat_map_spec(const HeatMap& map);

// All records' values of one scalar, at most `limit` points: means of equal bins of steps.
std::vector<Point> scalar_points(const std::vector<MetricRecord>& records,
                                 const std::string& name,
                                 std::size_t limit = 600);
// The table `name` of all records; several records in one column give their
// largest value, or the lowest.
HeatMap table_map(const std::vector<MetricRecord>& records,
                  const std::string& name,
                  bool lowest,
                  std::size_t limit = 120);

}  // namespace evenkeel
