// Which steps are left out because their loss or gradient norm is far above what it lately was (OLMo-core's
// SkipStepOptimizer and llm.c's OutlierDetector, 2024). The limits are known before the step, so that the
// optimizer can hold the step's numbers against them where these are, and are the same on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "framework/optimizer/adamw.h"

namespace evenkeel {

inline constexpr std::size_t kOutlierWindow = 128;  // steps looked back at
inline constexpr std::size_t kOutlierLeast = 64;    // of them, for a limit

// Losses and gradient norms of the last steps that made an update, the oldest first. Part of a checkpoint, so that
// a resumed run leaves out what the run would have left out.
struct RecentSteps {
    std::deque<double> losses, grad_norms;
    std::int64_t outliers = 0;         // steps left out so far
    std::int64_t outliers_in_row = 0;  // that ended with the last step

    // A step was an outlier: its numbers stay out, so that one does not hide the next. After kOutlierLeast of them
    // in a row the level has changed and the window begins anew; returns whether it does.
    bool add_outlier();
    // A step has made an update.
    void add(double loss, double grad_norm);
    void clear_window();
};

// Of both numbers the mean + sigma standard deviations (over the window, divided by its size; at least 1e-9 of the
// mean, so that values that are equal but for rounding are none); no limits for sigma 0 or fewer than
// kOutlierLeast steps.
UpdateLimits outlier_limits(const RecentSteps& recent, double sigma);

}  // namespace evenkeel
