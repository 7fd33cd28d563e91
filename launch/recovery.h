// How a run that was changed on the way finds back to a control run that was not: what its validation loss is
// above the control's.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "framework/training/metrics.h"
#include "launch/report_plots.h"

namespace evenkeel {

inline constexpr double kRecovered = 0.01;         // nats of excess that count as none
inline constexpr std::size_t kRecoveredInRow = 3;  // evaluations

struct Recovery {
    std::vector<Point> excess;  // run less control, at the steps at which both were evaluated
    // From this step on evaluations count: before it the run has hardly been changed. Infinity: it never is.
    double counted_from = 0.0;
    // The first of the first kRecoveredInRow evaluations in a row, of those that count, with an excess of kRecovered
    // at most; -1: there are none yet.
    std::int64_t step = -1;
    double area =
        0.0;  // under the excess, by trapezoids from the first evaluation to the last, nats x steps
    double largest() const;  // NaN without evaluations
    double last() const;
};

// Losses over steps, ascending. Of two at one step the last counts.
Recovery recovery_of(const std::vector<Point>& run,
                     const std::vector<Point>& control,
                     double counted_from = 0.0);
// Of the validation losses; where a norm comes in by and by, counted from the first step at which it is there.
Recovery recovery_of(const std::vector<MetricRecord>& run,
                     const std::vector<MetricRecord>& control);
nlohmann::ordered_json to_json(const Recovery& recovery);

// "validation loss less that of CONTROL: ..", one line or, with the excess at each evaluation, several; "" where
// the runs have no evaluation in common.
std::string summary_of(const Recovery& recovery, const std::string& control);
std::string text_of(const Recovery& recovery, const std::string& control);
// unit: of the losses, "nats per byte".
Figure recovery_figure(const Recovery& recovery,
                       const std::string& control,
                       const std::string& unit);

}  // namespace evenkeel
