#include "framework/training/spikes.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace evenkeel {
namespace {

constexpr std::size_t kScoreWindow = 1000, kScoreLeast = 64;
constexpr double kScoreLimit = 7.0;

double deviations(const std::deque<double>& values, double value) {
    double sum = 0.0, squares = 0.0;
    for (const double v : values) sum += v;
    const double mean = sum / static_cast<double>(values.size());
    for (const double v : values) squares += (v - mean) * (v - mean);
    // Equal values leave only their rounding to compare with.
    const double sigma =
        std::max(std::sqrt(squares / static_cast<double>(values.size())), 1e-9 * std::abs(mean));
    return value == mean ? 0.0 : (value - mean) / sigma;
}

}  // namespace

double Deviation::add(double value) {
    const double now = away(value);
    last_.push_back(now);
    if (last_.size() > kLastingValues) last_.pop_front();
    return now;
}

double Deviation::lasting() const {
    return last_.size() < kLastingValues ? 0.0 : *std::min_element(last_.begin(), last_.end());
}

double Deviation::away(double value) {
    if (!std::isfinite(value)) return std::numeric_limits<double>::infinity();
    const double away = values_.size() >= least_ ? deviations(values_, value) : 0.0;
    if (std::abs(away) > limit_) {
        if (++outside_ < window_ / 2) return away;
        values_.clear();
    }
    outside_ = 0;
    values_.push_back(value);
    if (values_.size() > window_) values_.pop_front();
    return away;
}

void SpikeScore::add(double value) {
    if (values_.size() >= kScoreLeast) {
        ++judged_;
        if (!(std::abs(deviations(values_, value)) < kScoreLimit)) ++spikes_;
    }
    if (!std::isfinite(value)) return;
    values_.push_back(value);
    if (values_.size() > kScoreWindow) values_.pop_front();
}

double SpikeScore::percent() const {
    return judged_ == 0 ? 0.0 : 100.0 * static_cast<double>(spikes_) / static_cast<double>(judged_);
}

}  // namespace evenkeel
