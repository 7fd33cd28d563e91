// What checkpoints and failures take of a long run.
//
// Young 1974 (A first order approximation to the optimum checkpoint interval); Daly 2006 (A higher order estimate of
// the optimum checkpoint interval for restart dumps, section 2).
#pragma once

#include <cstdint>

#include "scaling/hardware.h"

namespace evenkeel::scaling {

// Young: work between checkpoints that each stop the run for `stop` seconds, where a job fails every `between_failures`
// seconds on average: sqrt(2 C M).
double young_interval(double stop, double between_failures);

// Seconds, and shares of the time that a run takes.
struct LongRun {
    double between_failures = 0.0;  // M of the job: that of one GPU over the number of GPUs
    // C: what training waits for, the copy of one GPU that has most to copy; without copies the writing itself.
    double checkpoint_stop = 0.0;
    double checkpoint_write = 0.0;  // W: to storage
    double best_interval = 0.0;     // Young's, and no less than W
    double interval = 0.0;          // what is planned
    double checkpoint_share = 0.0;  // C / interval
    // (interval / 2 + W + R) / M: work done again, and restarts; no W without copies
    double failure_share = 0.0;
    // Of the time, what is training: 1 - checkpoint_share - failure_share, and no less than 0.
    double useful() const;
};

struct CheckpointBytes {
    double state = 0.0;  // of the whole model
    // What one GPU copies to its host's memory, to be written from there beside training (MemoryPlan::snapshot). 0: no
    // copies are made, and training waits until all is written.
    double copy = 0.0;
};

// interval: seconds between checkpoints; 0: the best.
LongRun plan_long_run(const Hardware& hardware,
                      std::int64_t gpus,
                      const CheckpointBytes& checkpoint,
                      double interval = 0.0);

}  // namespace evenkeel::scaling
