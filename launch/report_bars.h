// Bars of a report, one below the other, each of several parts.
#pragma once

#include <string>
#include <vector>

#include "launch/report_page.h"

namespace evenkeel {

struct StackedBars {
    struct Part {
        std::string name, color;
        std::vector<double> values;  // of each bar
    };
    std::vector<std::string> bars;  // names
    std::vector<Part> parts;
    std::string unit;    // of the horizontal axis
    std::string format;  // of values in tooltips, d3-format
};
// The plot with its legend; parts that are 0 in all bars are left out.
Figure figure_of(const std::string& title, const StackedBars& bars);

}  // namespace evenkeel
