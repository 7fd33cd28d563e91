// The report of a scaling study: DIR/report.html and DIR/results.csv.
#pragma once

#include <string>
#include <vector>

#include "launch/report_page.h"
#include "launch/scale/run/results.h"

namespace evenkeel::scale {

// A line for each result, commas between, texts in quotes; a number that there is not is empty.
std::string to_csv(const std::vector<Result>& results);
ReportPage page_of(const RunPlan& plan, const std::vector<Result>& results);

}  // namespace evenkeel::scale
