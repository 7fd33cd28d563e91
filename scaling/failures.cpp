#include "scaling/failures.h"

#include <algorithm>
#include <cmath>

namespace evenkeel::scaling {

double young_interval(double stop, double between_failures) {
    return std::sqrt(2.0 * stop * between_failures);
}

double LongRun::useful() const { return std::max(0.0, 1.0 - checkpoint_share - failure_share); }

LongRun plan_long_run(const Hardware& hardware,
                      std::int64_t gpus,
                      const CheckpointBytes& checkpoint,
                      double interval) {
    constexpr double kHour = 3600.0, kMinute = 60.0, kGiga = 1e9;
    const auto count = static_cast<double>(gpus);
    LongRun run;
    run.between_failures = hardware.gpu_hours_between_failures * kHour / count;
    run.checkpoint_write = checkpoint.state / (hardware.checkpoint_gigabytes_per_second * kGiga);
    const bool beside = checkpoint.copy > 0.0;
    run.checkpoint_stop = beside ? checkpoint.copy / (hardware.host_gigabytes_per_second * kGiga)
                                 : run.checkpoint_write;
    run.best_interval =
        std::max(young_interval(run.checkpoint_stop, run.between_failures), run.checkpoint_write);
    run.interval = interval > 0.0 ? std::max(interval, run.checkpoint_write) : run.best_interval;
    run.checkpoint_share = run.checkpoint_stop / run.interval;
    run.failure_share = (run.interval / 2.0 + (beside ? run.checkpoint_write : 0.0) +
                         hardware.restart_minutes * kMinute) /
                        run.between_failures;
    return run;
}

}  // namespace evenkeel::scaling
