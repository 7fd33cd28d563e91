#include "launch/recovery.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "framework/json.h"
#include "launch/saved_run.h"

namespace evenkeel {
namespace {

std::map<double, double> by_step(const std::vector<Point>& losses) {
    std::map<double, double> map;
    for (const Point& p : losses) map[p.x] = p.y;
    return map;
}

std::string verdict(const Recovery& recovery) {
    std::vector<Point> excess = recovery.excess;
    std::erase_if(excess, [&](const Point& p) { return p.x < recovery.counted_from; });
    const bool all_count = excess.size() == recovery.excess.size();
    const std::string counted =
        all_count ? ""
                  : concat(", counted from step ", recovery.counted_from, ", where the norm is in");
    if (std::isinf(recovery.counted_from)) {
        return concat("the norm has not come in within ", recovery.excess.back().x, " steps");
    }
    if (excess.size() < kRecoveredInRow) {
        return concat("too few evaluations (", excess.size(), counted,
                      ") to say whether it has recovered");
    }
    const auto is_better = [](const Point& p) { return p.y <= 0.0; };
    if (all_count && std::all_of(excess.begin(), excess.end(), is_better)) {
        return concat("at no evaluation worse, from the first at step ", excess.front().x, " on");
    }
    if (all_count && recovery.step == static_cast<std::int64_t>(excess.front().x)) {
        return concat("recovered by the first evaluation, at step ", recovery.step);
    }
    if (recovery.step >= 0) return concat("recovered at step ", recovery.step, counted);
    return concat("not recovered within ", excess.back().x, " steps", counted);
}

// 0 for a run that has no such number.
double step_with_the_norm_in(const std::vector<MetricRecord>& records) {
    const std::vector<Point> lambda =
        scalar_points(records, "qk_norm_lambda", std::max<std::size_t>(records.size(), 1));
    if (lambda.empty()) return 0.0;
    const auto in =
        std::find_if(lambda.begin(), lambda.end(), [](const Point& p) { return p.y >= 1.0; });
    return in == lambda.end() ? std::numeric_limits<double>::infinity() : in->x;
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

Recovery recovery_of(const std::vector<Point>& run,
                     const std::vector<Point>& control,
                     double counted_from) {
    Recovery recovery;
    recovery.counted_from = counted_from;
    const std::map<double, double> losses = by_step(control);
    for (const auto& [step, loss] : by_step(run)) {
        const auto other = losses.find(step);
        if (other != losses.end()) recovery.excess.push_back({step, loss - other->second});
    }
    std::size_t in_row = 0;
    for (std::size_t i = 0; i < recovery.excess.size() && recovery.step < 0; ++i) {
        if (recovery.excess[i].x < counted_from) continue;
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
    return recovery_of(losses(run), losses(control), step_with_the_norm_in(run));
}

nlohmann::ordered_json to_json(const Recovery& recovery) {
    using Json = nlohmann::ordered_json;
    // JSON has neither NaN nor infinity.
    const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
    Json excess = Json::array();
    for (const Point& p : recovery.excess)
        excess.push_back({{"step", p.x}, {"excess", number(p.y)}});
    return {{"recovery_step", recovery.step < 0 ? Json() : Json(recovery.step)},
            {"counted_from", number(recovery.counted_from)},
            {"allowed_excess", kRecovered},
            {"evaluations_in_a_row", kRecoveredInRow},
            {"largest_excess", number(recovery.largest())},
            {"last_excess", number(recovery.last())},
            {"area", number(recovery.area)},
            {"evaluations", excess}};
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

Figure recovery_figure(const Recovery& recovery,
                       const std::string& control,
                       const std::string& unit) {
    LinePlot plot;
    plot.format = "+.4f";
    plot.unit = unit;
    plot.series.push_back({"validation loss less that of " + control, kBlue, recovery.excess,
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
