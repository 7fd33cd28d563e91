// The configuration of a run: what a file in configs/ holds.
#pragma once

#include <string>
#include <vector>

#include "framework/training/trainer.h"
#include "model/language_model.h"
#include "model/telemetry/alarms.h"
#include "parallel/process_grid.h"

namespace evenkeel {

struct RunConfig {
    Device device = Device::kCpu;
    bool cuda_graphs = true;  // see LanguageModel::set_graphs
    ModelConfig model;
    DataConfig data;
    TrainerConfig trainer;
    ScheduleConfig schedule;
    AdamWConfig optimizer;
    ParallelConfig parallel;
    AlarmConfig alarms;
    void visit_fields(ConfigVisitor& v);
    // Rules within and across sections, checked before anything is allocated; throws kConfig naming the
    // key to change. world_size: ranks that were started.
    void validate(int world_size) const;
};

// File, then overrides; not validated, because rules depend on the number of ranks.
RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides);
// The keys that the file sets and that an override of model.method, which stands for a whole set of values, has
// set otherwise; "" if there are none.
std::string replaced_by_method(const std::string& path, const std::vector<std::string>& overrides);
std::string to_json(RunConfig& config);
// "model.attention  num_heads=8 num_kv_heads=4 ..": a line a section, for the start of a log.
std::string compact_text(RunConfig& config);

}  // namespace evenkeel
