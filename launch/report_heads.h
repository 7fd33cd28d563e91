// The part of a report that shows what each attention head did, and where alarms were raised.
#pragma once

#include <string>
#include <vector>

#include "framework/training/metrics.h"
#include "launch/report_page.h"
#include "launch/report_plots.h"

namespace evenkeel {

// Alarms as lines of text, the first one first.
std::vector<Notice> alarm_notices(const std::vector<MetricRecord>& records);

// Alarms about any of `metrics` (all of them if there are none), each from where it was raised, as
// alarm_notices says it, to where it was over, or to the last record.
std::vector<PlotMark> alarm_marks(const std::vector<MetricRecord>& records,
                                  const std::vector<std::string>& metrics = {});

// Groups of plots: logits, entropy, gains, norms. Tables that the run has not recorded are left out.
std::vector<Figure> head_figures(const std::vector<MetricRecord>& records);

}  // namespace evenkeel
