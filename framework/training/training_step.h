// One step of the training loop. Internal.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/data/dataset.h"
#include "framework/optimizer/adamw.h"
#include "framework/optimizer/schedule.h"
#include "framework/training/run_state.h"
#include "framework/training/trainable_model.h"
#include "framework/training/trainer_config.h"

namespace evenkeel {

struct StepOutcome {
    double loss = 0.0;
    double grad_norm = 0.0;
    double lr = 0.0;
    double seconds = 0.0;
    double exposed_seconds = 0.0;  // of waiting for other ranks
    bool skipped = false;
};

class TrainingStep {
  public:
    // All of them must outlive the step.
    TrainingStep(TrainableModel& model,
                 const Dataset& data,
                 const TrainerConfig& config,
                 const ScheduleConfig& schedule,
                 const AdamWConfig& optimizer);

    // The step that follows on `state`, whose number of updates it raises. Collective.
    StepOutcome take(RunState& state);
    // This rank's part of that step.
    std::vector<Batch> micro_batches(const RunState& state) const;

  private:
    Batch micro_batch(const RunState& state, std::int64_t index) const;

    TrainableModel& model_;
    const Dataset& data_;
    const TrainerConfig& config_;
    const ScheduleConfig& schedule_;
    const AdamWConfig& optimizer_;
    std::int64_t accumulation_;
    Tensor numbers_;  // of the step: see compute_gradients
};

}  // namespace evenkeel
