// A run's report: one HTML page with plots that needs nothing but a browser.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/training/metrics.h"
#include "launch/commands.h"

namespace evenkeel {

// The directory of Vega's packaged browser modules, "" when it is not installed. EVENKEEL_VEGA_DIR names
// another place.
std::string find_vega();
inline constexpr const char* kVegaMissing =
    "the Vega plotting library is not installed; run: apt-get install libjs-vega";

// Writes the page and returns its path. Throws kIo when the run or Vega is missing.
std::string write_report(const ReportCommand& command);

// How far two loss curves are apart over the steps that both have: max |a - b| / |b|.
struct CurveDifference {
    std::int64_t steps = 0;
    std::int64_t worst_step = 0;
    double largest = 0.0;
};
CurveDifference compare_losses(const std::vector<MetricRecord>& a,
                               const std::vector<MetricRecord>& b);

}  // namespace evenkeel
