// The training loop over a model (trainable_model.h): batches, gradient accumulation, clipping, schedule, AdamW,
// evaluation, metrics, checkpoint and resume. It knows nothing of attention or of how ranks talk.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/config.h"
#include "framework/data/dataset.h"
#include "framework/optimizer/adamw.h"
#include "framework/optimizer/schedule.h"
#include "framework/parameter.h"
#include "framework/training/alarm.h"
#include "framework/training/trainable_model.h"

namespace evenkeel {

// The passes of one training step: gradients from zero over this rank's micro-batches, reduced. Sets
// `numbers` to {mean loss, squared gradient norm}, [2] fp64 on the model's device: see adamw_step. Gradients
// outside of `scope` are zero, also for the norm. The same
// tensor in every step lets a model replay what it has recorded. Collective; on CUDA the host waits for
// nothing.
void compute_gradients(TrainableModel& model,
                       std::span<const Batch> micro_batches,
                       const Tensor& numbers,
                       UpdateScope scope = UpdateScope::kAll);

struct TrainerConfig {
    enum class NonFinite { kEnd, kSkip };
    std::int64_t steps = 200;
    std::int64_t batch_size = 16;        // sequences a step, over all data-parallel ranks
    std::int64_t micro_batch_size = 16;  // sequences a forward pass on one rank
    std::int64_t seq_len = 256;
    std::int64_t seed = 1;
    double clip_norm = 1.0;  // global gradient norm; 0 for none
    NonFinite non_finite = NonFinite::kEnd;
    std::int64_t log_interval = 1;         // steps between records in metrics.jsonl
    std::int64_t telemetry_interval = 0;   // steps between head tables; 0: in every record
    std::int64_t eval_interval = 0;        // steps between evaluations; 0: only at the end
    std::int64_t eval_sequences = 64;      // 0: the whole validation split
    std::int64_t checkpoint_interval = 0;  // steps between checkpoints; 0: only at the end
    std::int64_t checkpoint_keep = 2;      // newest checkpoints kept; 0: all
    std::string run_dir = "runs/default";
    // A run or checkpoint whose weights this run starts from, counting its own steps from 0; "": none. The
    // moments are taken along where it has them for a parameter, and with them the number of updates, for their
    // bias correction; others start at zero.
    std::string init_from;
    bool init_moments = true;            // false: all moments start at zero
    std::int64_t first_phase_steps = 0;  // steps that train only what Parameter::first_phase says
    bool resume = false;  // continue from the newest checkpoint in run_dir, if there is one
    std::int64_t stop_at_step =
        0;  // end (with a checkpoint) after this many steps of `steps`; 0: none
    void visit_fields(ConfigVisitor& v);
    void validate(int data_parallel_size) const;  // throws kConfig
    // Micro-batches a step on one rank; gradient accumulation adds them up.
    std::int64_t accumulation(int data_parallel_size) const;
};

struct TrainResult {
    std::int64_t steps = 0;
    std::vector<double> losses;  // of the steps run here
    double validation_loss = 0.0;
    double tokens_per_second = 0.0;  // median over steps
    std::int64_t skipped = 0;        // steps without an update, because of a non-finite gradient
    std::string checkpoint;          // path of the last one
};

// Runs (or resumes) to the end. Writes, by the main rank alone, run_dir/config.json (`config_json`, the
// resolved configuration), run_dir/metrics.jsonl (a record's step counts from 1) and
// run_dir/checkpoints/step_*. What a step trains on depends on (seed, global sample index) alone: data-
// parallel rank d takes the d-th contiguous part of the global batch. Collective; the ranks must see the
// same run_dir. A run without checkpoints starts from init_from, if there is one. Throws kConfig when run_dir
// holds checkpoints and resume is false, when they are of another model, text, seed or sequence length, or
// when there is to be a first phase and no parameter is trained in it; kNonFinite when a loss or gradient is not finite and
// non_finite is kEnd, before the update; AlarmError after a checkpoint when a rule of `alarms` with that action is
// broken. after_step, if there is one, is called on every rank after each step with how many have been done
// here. Alarms look at records; what they know goes into checkpoints, so that an alarm that ended a run is
// not raised again by the run that resumes it unless it was over in between. Records also hold
// "grad_norm_deviations" (spikes.h: the largest since the last record) and "loss_spike_score" and
// "grad_norm_spike_score"; their windows begin anew on resuming.
TrainResult train(TrainableModel& model,
                  const Dataset& data,
                  const TrainerConfig& trainer,
                  const ScheduleConfig& schedule,
                  const AdamWConfig& optimizer,
                  const std::string& config_json,
                  const std::function<void(std::int64_t)>& after_step = {},
                  const std::vector<AlarmRule>& alarms = {});

// Mean validation loss over `sequences` sequences spread evenly (0: all). Collective.
double evaluate(TrainableModel& model,
                const Dataset& data,
                std::int64_t sequences,
                std::int64_t micro_batch_size);

}  // namespace evenkeel
