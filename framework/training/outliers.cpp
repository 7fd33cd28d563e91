#include "framework/training/outliers.h"

#include <algorithm>
#include <cmath>

namespace evenkeel {
namespace {

double limit_of(const std::deque<double>& values, double sigma) {
    const auto count = static_cast<double>(values.size());
    double sum = 0.0, squares = 0.0;
    for (const double v : values) sum += v;
    const double mean = sum / count;
    for (const double v : values) squares += (v - mean) * (v - mean);
    return mean + sigma * std::max(std::sqrt(squares / count), 1e-9 * std::abs(mean));
}

}  // namespace

void RecentSteps::clear_window() {
    losses.clear();
    grad_norms.clear();
    outliers_in_row = 0;
}

bool RecentSteps::add_outlier() {
    ++outliers;
    if (++outliers_in_row < static_cast<std::int64_t>(kOutlierLeast)) return false;
    clear_window();
    return true;
}

void RecentSteps::add(double loss, double grad_norm) {
    outliers_in_row = 0;
    losses.push_back(loss);
    grad_norms.push_back(grad_norm);
    if (losses.size() <= kOutlierWindow) return;
    losses.pop_front();
    grad_norms.pop_front();
}

UpdateLimits outlier_limits(const RecentSteps& recent, double sigma) {
    if (sigma == 0.0 || recent.losses.size() < kOutlierLeast) return {};
    return {limit_of(recent.losses, sigma), limit_of(recent.grad_norms, sigma)};
}

}  // namespace evenkeel
