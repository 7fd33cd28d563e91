#include "launch/recovery.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "launch/saved_run.h"

namespace evenkeel {
namespace {

std::map<double, double> by_step(const std::vector<Point>& losses) {
    std::map<double, double> map;
    for (const Point& p : losses) map[p.x] = p.y;
    return map;
}

std::string verdict(const Recovery& recovery) {
    const std::vector<Point>& excess = recovery.excess;
    if (excess.size() < kRecoveredInRow) {
        return concat("too few evaluations (", excess.size(), ") to say whether it has recovered");
    }
    const auto is_better = [](const Point& p) { return p.y <= 0.0; };
    if (std::all_of(excess.begin(), excess.end(), is_better)) {
        return concat("at no evaluation worse, from the first at step ", excess.front().x, " on");
    }
    if (recovery.step == static_cast<std::int64_t>(excess.front().x)) {
        return concat("recovered by the first evaluation, at step ", recovery.step);
    }
    if (recovery.step >= 0) return concat("recovered at step ", recovery.step);
    return concat("not recovered within ", excess.back().x, " steps");
}

}  // namespace

double Recovery::largest() const {
    double most = std::numeric_limits<double>::quiet_NaN();
    for (const Point& p : excess) {
        if (!(p.y <= most)) most = p.y;
        if (std::isnan(most)) break;
    }
    return most;
}

double Recovery::last() const {
    return excess.empty() ? std::numeric_limits<double>::quiet_NaN() : excess.back().y;
}

Recovery recovery_of(const std::vector<Point>& run, const std::vector<Point>& control) {
    Recovery recovery;
    const std::map<double, double> losses = by_step(control);
    for (const auto& [step, loss] : by_step(run)) {
        const auto other = losses.find(step);
        if (other != losses.end()) recovery.excess.push_back({step, loss - other->second});
    }
    std::size_t in_row = 0;
    for (std::size_t i = 0; i < recovery.excess.size() && recovery.step < 0; ++i) {
        in_row = recovery.excess[i].y <= kRecovered ? in_row + 1 : 0;
        if (in_row < kRecoveredInRow) continue;
        recovery.step = static_cast<std::int64_t>(recovery.excess[i + 1 - kRecoveredInRow].x);
    }
    for (std::size_t i = 1; i < recovery.excess.size(); ++i) {
        const Point &a = recovery.excess[i - 1], &b = recovery.excess[i];
        recovery.area += (b.x - a.x) * (a.y + b.y) / 2.0;
    }
    return recovery;
}

Recovery recovery_of(const std::vector<MetricRecord>& run,
                     const std::vector<MetricRecord>& control) {
    const auto losses = [](const std::vector<MetricRecord>& records) {
        return scalar_points(records, "validation_loss", std::max<std::size_t>(records.size(), 1));
    };
    return recovery_of(losses(run), losses(control));
}

std::string summary_of(const Recovery& recovery, const std::string& control) {
    if (recovery.excess.empty()) return "";
    const std::string recovered = verdict(recovery);
    return concat("Validation loss less that of ", control, ": at most ",
                  format("%+.4f", recovery.largest()), ", ", format("%+.4f", recovery.last()),
                  " at the end, area ", format("%.3g", recovery.area), " nats x steps; ", recovered,
                  " (", kRecovered, " nats or less in ", kRecoveredInRow,
                  " evaluations in a row).");
}

std::string text_of(const Recovery& recovery, const std::string& control) {
    if (recovery.excess.empty()) return "";
    std::string text = summary_of(recovery, control) + "\n";
    for (const Point& p : recovery.excess) {
        text += concat("  step ", p.x, "  ", format("%+.4f", p.y), "\n");
    }
    return text;
}

Figure recovery_figure(const Recovery& recovery, const std::string& control) {
    LinePlot plot;
    plot.format = "+.4f";
    plot.unit = "nats per byte";
    plot.series.push_back({"validation loss less that of " + control, "#2864b0", recovery.excess,
                           Series::Style::kMarked});
    if (!recovery.excess.empty()) {
        plot.series.push_back(
            {"recovered below",
             "#2d8659",
             {{recovery.excess.front().x, kRecovered}, {recovery.excess.back().x, kRecovered}},
             Series::Style::kDashed});
    }
    Figure figure = figure_of("Excess over " + control, plot);
    figure.note = summary_of(recovery, control);
    figure.wide = true;
    return figure;
}

}  // namespace evenkeel
