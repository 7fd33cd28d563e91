// The configuration of a run: what a file in configs/ holds.
#pragma once

#include "framework/trainer.h"
#include "model/language_model.h"
#include "parallel/process_grid.h"

namespace evenkeel {

struct RunConfig {
    ModelConfig model;
    DataConfig data;
    TrainerConfig trainer;
    ScheduleConfig schedule;
    AdamWConfig optimizer;
    ParallelConfig parallel;
    void visit_fields(ConfigVisitor& v);
    void validate(int world_size) const;  // cross-field rules; throws kConfig
};

}  // namespace evenkeel
