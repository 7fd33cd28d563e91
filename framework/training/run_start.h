// Where a run begins: at nothing, at another run's weights or at its own newest checkpoint. Internal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "framework/optimizer/adamw.h"
#include "framework/optimizer/schedule.h"
#include "framework/storage/checkpoint.h"
#include "framework/training/alarm.h"
#include "framework/training/run_state.h"
#include "framework/training/trainable_model.h"
#include "framework/training/trainer_config.h"

namespace evenkeel {

// What decides the course of a run beside model, data and seed, as JSON. Not where it stops or what it writes.
std::string settings_json(const TrainerConfig& trainer,
                          ScheduleConfig schedule,
                          AdamWConfig optimizer);

// Loads what the run begins with into the model, `state` and `board`; rewind_to: see RunControl. Errors: see train.
// Collective.
void start_or_resume(TrainableModel& model,
                     const TrainerConfig& config,
                     const CheckpointStore& store,
                     std::optional<std::int64_t> rewind_to,
                     RunState& state,
                     AlarmBoard& board);

}  // namespace evenkeel
