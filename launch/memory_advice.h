// What a run takes of each rank's memory, and what to change where that is too much.
#pragma once

#include <cstddef>
#include <string>

#include "framework/device_memory.h"
#include "launch/run_config.h"
#include "model/memory_plan.h"

namespace evenkeel {

// The configuration is valid for that many ranks.
MemoryPlan plan_memory(const RunConfig& config, int world_size);

// One clause that names the settings nearest to the configuration whose plan takes `available` bytes at most:
// a smaller micro-batch that divides what a rank sees of a step, or else more that backward makes again, or else
// more tensor-parallel ranks.
std::string what_fits(const RunConfig& config, int world_size, std::size_t available);

// Before anything is allocated: throws kConfig where a GPU's free memory, or a machine's whole, is less than the
// plan. What is free on a machine is a guess, so less of that than planned is a warning. `memory` is the share
// of this rank where several have it in common; zero: not known, nothing happens.
void check_memory(const RunConfig& config, int world_size, const DeviceMemory& memory);

// What the plan becomes where passes are recorded as graphs (LanguageModel::set_graphs), which keep memory of
// their own: one for a step's last micro-batch, one for those before, beside what passes outside of them take.
std::size_t total_with_graphs(const RunConfig& config, int world_size);

}  // namespace evenkeel
