// The training loop over a model (trainable_model.h): batches, gradient accumulation, clipping, schedule, AdamW,
// evaluation, metrics, checkpoint and resume. It knows nothing of attention or of how ranks talk.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/data/dataset.h"
#include "framework/optimizer/adamw.h"
#include "framework/optimizer/schedule.h"
#include "framework/training/alarm.h"
#include "framework/training/evaluation.h"
#include "framework/training/gradients.h"
#include "framework/training/stop_request.h"
#include "framework/training/trainable_model.h"
#include "framework/training/trainer_config.h"

namespace evenkeel {

struct TrainResult {
    std::int64_t steps = 0;      // done here
    std::int64_t last_step = 0;  // of the run, at which this ended
    std::vector<double> losses;  // of the steps run here
    double validation_loss = 0.0;
    double tokens_per_second = 0.0;  // median over steps
    double tflops_per_rank = 0.0;    // 10^12 of the model's operations a second at that rate
    std::int64_t skipped = 0;        // steps without an update: not finite, or outliers
    std::string
        checkpoint;       // path of the last one; "" where a run was stopped before its first step
    StopRequest stopped;  // what ended the run before its last step, if anything did
};

// What is asked of a run from outside, beside its configuration.
struct RunControl {
    // What this rank has been asked for: StopSignals::request. The ranks decide together, before the first step,
    // after each and between the micro-batches of an evaluation, which is then dropped.
    std::function<StopRequest()> stop;
    // Go on from the newest checkpoint of at most this many steps. Later ones are kept under another name
    // (rewind.h).
    std::optional<std::int64_t> rewind_to;
    // Called by the main rank when nobody else writes to the run directory any more (run_lock.h).
    std::function<void()> owns_directory;
    // Called on every rank when nothing speaks against the run any more, before its first step.
    std::function<void()> begins;
};

// What all ranks throw at a step whose loss or gradient is not finite.
class NonFiniteStep : public Error {
  public:
    explicit NonFiniteStep(const std::string& message) : Error(ErrorCode::kNonFinite, message) {}
};

// Runs (or resumes) to the end. Writes, by the main rank alone, run_dir/config.json (`config_json`, the
// resolved configuration), run_dir/metrics.jsonl (a record's step counts from 1) and
// run_dir/checkpoints/step_* (all ranks write there; checkpoint_writer.h). What a step trains on depends on (seed, global sample index) alone: data-
// parallel rank d takes the d-th contiguous part of the global batch. Collective; the ranks must see the
// same run_dir. A run without checkpoints starts from init_from, if there is one. Throws kConfig when run_dir
// holds checkpoints and resume is false, when they are of another model, text, seed or sequence length, or
// when there is to be a first phase and no parameter is trained in it; NonFiniteStep when a loss or gradient is not finite and
// non_finite is kEnd, before the update; AlarmError after a checkpoint when a rule of `alarms` with that action is
// broken. after_step, if there is one, is called on every rank after each step with how many have been done
// here. Alarms look at records; what they know goes into checkpoints, so that an alarm that ended a run is
// not raised again by the run that resumes it unless it was over in between. Records also hold
// "grad_norm_deviations" (spikes.h: the largest since the last record) and "loss_spike_score" and
// "grad_norm_spike_score"; their windows begin anew on resuming.
// Throws kInternal when ranks' copies of a parameter have drifted apart (TrainableModel::replica_drift).
// A run that is asked to end writes a checkpoint, waits until it is there, and returns.
TrainResult train(TrainableModel& model,
                  const Dataset& data,
                  const TrainerConfig& trainer,
                  const ScheduleConfig& schedule,
                  const AdamWConfig& optimizer,
                  const std::string& config_json,
                  const std::function<void(std::int64_t)>& after_step = {},
                  const std::vector<AlarmRule>& alarms = {},
                  const RunControl& control = {});

}  // namespace evenkeel
