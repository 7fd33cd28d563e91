#include "framework/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "framework/error.h"

namespace evenkeel {
namespace {

constexpr const char* kKinds[] = {"cosine", "warmup_stable_decay", "constant"};

// Fraction of the way from the peak to the final learning rate.
double decayed_fraction(const ScheduleConfig& config, std::int64_t step, std::int64_t total_steps) {
    const std::int64_t last = total_steps - 1;
    const std::int64_t peak = std::max<std::int64_t>(config.warmup_steps - 1, 0);
    if (step <= peak) return 0.0;
    switch (config.kind) {
        case ScheduleConfig::Kind::kCosine: {
            if (step >= last) return 1.0;
            const double t = static_cast<double>(step - peak) / static_cast<double>(last - peak);
            return 0.5 * (1.0 - std::cos(std::numbers::pi * t));
        }
        case ScheduleConfig::Kind::kWarmupStableDecay: {
            const std::int64_t length = std::min(config.decay_steps, last - peak);
            if (length <= 0 || step <= last - length) return 0.0;
            if (step >= last) return 1.0;
            return static_cast<double>(step - (last - length)) / static_cast<double>(length);
        }
        case ScheduleConfig::Kind::kConstant:
            return 0.0;
    }
    return 0.0;
}

}  // namespace

void ScheduleConfig::visit_fields(ConfigVisitor& v) {
    v.choice("kind", kind, kKinds, "shape of the learning rate after the warm-up");
    v.field("peak_lr", peak_lr, "largest learning rate");
    v.field("final_lr_ratio", final_lr_ratio, "last learning rate divided by peak_lr");
    v.field("warmup_steps", warmup_steps, "steps of linear increase up to peak_lr");
    v.field("decay_steps", decay_steps,
            "warmup_stable_decay: steps of linear decrease at the end; 0 for none");
}

void ScheduleConfig::validate() const {
    const auto check = [](bool condition, const char* name, auto got, const char* want) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kConfig, "config", "schedule.", name, ": got ",
                            got, ", want ", want);
    };
    check(std::isfinite(peak_lr) && peak_lr > 0.0, "peak_lr", peak_lr, "a positive number");
    check(final_lr_ratio >= 0.0 && final_lr_ratio <= 1.0, "final_lr_ratio", final_lr_ratio,
          "a number from 0 to 1");
    check(warmup_steps >= 0, "warmup_steps", warmup_steps, "0 or more");
    check(decay_steps >= 0, "decay_steps", decay_steps, "0 or more");
}

double learning_rate(const ScheduleConfig& config, std::int64_t step, std::int64_t total_steps) {
    config.validate();
    EVENKEEL_CHECK(step >= 0, "learning_rate", "step: got ", step, ", want 0 or more");
    EVENKEEL_CHECK(total_steps > 0, "learning_rate", "total_steps: got ", total_steps,
                   ", want 1 or more");
    if (step < config.warmup_steps) {
        return config.peak_lr * static_cast<double>(step + 1) /
               static_cast<double>(config.warmup_steps);
    }
    const double fraction = decayed_fraction(config, step, total_steps);
    return config.peak_lr * (1.0 - (1.0 - config.final_lr_ratio) * fraction);
}

}  // namespace evenkeel
