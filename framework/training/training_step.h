// One step of the training loop. Internal.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/data/dataset.h"
#include "framework/optimizer/adamw.h"
#include "framework/optimizer/schedule.h"
#include "framework/training/batch_ranges.h"
#include "framework/training/run_state.h"
#include "framework/training/trainable_model.h"
#include "framework/training/trainer_config.h"

namespace evenkeel {

struct StepOutcome {
    double loss = 0.0;
    double grad_norm = 0.0;
    double lr = 0.0;
    double seconds = 0.0;
    std::vector<CommunicationPart> communication;  // of this rank
    double exposed_seconds() const;                // of waiting for other ranks
    enum class Skip { kNone, kNonFinite, kOutlier } skip = Skip::kNone;
    UpdateLimits limits;                // of loss and gradient norm
    bool outlier_level = false;         // the last of so many outliers that they are the new level
    std::int64_t batches_left_out = 0;  // since the step before: trainer.skip_batches
    bool skipped() const { return skip != Skip::kNone; }
};

class TrainingStep {
  public:
    // All of them must outlive the step.
    TrainingStep(TrainableModel& model,
                 const Dataset& data,
                 const TrainerConfig& config,
                 const ScheduleConfig& schedule,
                 const AdamWConfig& optimizer);

    // The step that follows on `state`, in which it notes all but that the step is done: state.sample is the
    // step's first. Collective.
    StepOutcome take(RunState& state);
    // This rank's part of that step.
    std::vector<Batch> micro_batches(const RunState& state) const;

  private:
    void note(StepOutcome& outcome, RunState& state);
    Batch micro_batch(const RunState& state, std::int64_t index) const;

    TrainableModel& model_;
    const Dataset& data_;
    const TrainerConfig& config_;
    const ScheduleConfig& schedule_;
    const AdamWConfig& optimizer_;
    std::int64_t accumulation_;
    std::vector<BatchRange> skip_batches_;
    Tensor numbers_;  // of the step: see compute_gradients
};

}  // namespace evenkeel
