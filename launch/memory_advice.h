// What a run takes of each rank's memory, and what to change where that is too much.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "framework/device_memory.h"
#include "launch/run_config.h"
#include "model/memory_plan.h"

namespace evenkeel {

// The configuration is valid for that many ranks.
MemoryPlan plan_memory(const RunConfig& config, int world_size);

// What each setting that makes less of it saves by itself, as far as it is not there already: parts of the optimizer's
// state (parallel.zero_stage) and of the stream (parallel.sequence_parallel) on each rank, what backward makes again
// (model.recompute), the next smaller micro-batch that divides this one. The largest first.
struct Saving {
    std::string setting;  // "parallel.zero_stage=1"
    std::size_t bytes;
};
std::vector<Saving> savings(const RunConfig& config, int world_size);

// One clause that names the settings nearest to the configuration whose plan takes `available` bytes at most. In this
// order: the optimizer's state or the stream in parts, which change no result beyond its last digits and cost
// nothing worth the name (of the two the one that saves more, or else both); with as few of these as it takes a smaller
// micro-batch that divides what a rank sees of a step; or else more that backward makes again; or else more
// tensor-parallel ranks.
std::string what_fits(const RunConfig& config, int world_size, std::size_t available);

// Before anything is allocated: throws kConfig where a GPU's free memory, or a machine's whole, is less than the
// plan, and warns where a GPU has room for it but not for the reserve beside it (usable_memory.h). What is free on a
// machine is a guess, so less of that than planned is a warning. `memory` is the share of this rank where several have it
// in common; zero: not known, nothing happens.
void check_memory(const RunConfig& config, int world_size, const DeviceMemory& memory);

// This rank's part of what the ranks of a node have in common: the machine, or a GPU that several use. Collective.
DeviceMemory share_of_memory(Device device, Communicator& world);

// What the plan becomes where passes are recorded as graphs (LanguageModel::set_graphs), which keep memory of
// their own: one for a step's last micro-batch, one for those before, beside what passes outside of them take.
std::size_t total_with_graphs(const RunConfig& config, int world_size);
// Whether passes are to be recorded. The same on all ranks: NCCL wants an operation in a graph on all or none.
bool records_graphs(const RunConfig& config, const ProcessGrid& grid, const DeviceMemory& memory);

}  // namespace evenkeel
