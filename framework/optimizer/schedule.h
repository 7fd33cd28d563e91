// Learning-rate schedules.
#pragma once

#include <cstdint>

#include "framework/config.h"

namespace evenkeel {

struct ScheduleConfig {
    enum class Kind { kCosine, kWarmupStableDecay, kConstant };
    Kind kind = Kind::kCosine;
    double peak_lr = 3e-3;
    double final_lr_ratio = 0.1;     // last learning rate over peak_lr
    std::int64_t warmup_steps = 20;  // linear from peak_lr / warmup_steps to peak_lr
    std::int64_t decay_steps = 0;    // kWarmupStableDecay: length of the final linear decay
    void visit_fields(ConfigVisitor& v);
    void validate() const;  // throws kConfig
};

// Learning rate of step `step` (from 0) in a run of `total_steps`. Cosine: Loshchilov and Hutter 2017
// (SGDR), eq. 5, one cycle after the warm-up; the last step gets peak_lr * final_lr_ratio.
// Warm-up-stable-decay: constant after the warm-up, linear over the last decay_steps (or what the
// warm-up leaves of them). Without a warm-up the first step gets peak_lr; a warm-up longer than the run
// is cut off with it; steps beyond the run keep the last step's rate.
double learning_rate(const ScheduleConfig& config, std::int64_t step, std::int64_t total_steps);

}  // namespace evenkeel
