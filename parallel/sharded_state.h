// Parameters and optimizer state in files: each rank writes what it owns (state_shard.h); any number of ranks reads
// what any number has written, bit for bit.
#pragma once

#include <string>
#include <vector>

#include "framework/parameter.h"
#include "framework/storage/state_shard.h"
#include "framework/storage/tensor_source.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// The global tensor on the CPU of the TP group's rank 0, put together from the owners' parts of it: `local` is one
// of the parameter's tensors. Undefined on other ranks. Collective over the TP group.
Tensor gather_parameter(const ProcessGrid& grid, const Parameter& parameter, const Tensor& local);

// The files that this rank writes, with views of the parameters' own memory: "model" (fp32 master weights under the
// parameters' names) and "optimizer" (name + ".exp_avg", ".exp_avg_sq" of those that are trained). Of the first
// data-parallel replica each rank has its owners' parts, and of what is cut over the data-parallel ranks (ZeRO) every
// rank has its run; one writer writes model.safetensors, several write model-00001-of-0000N.safetensors and so on. Empty
// on ranks that write nothing.
std::vector<StateShard> local_state(const ProcessGrid& grid,
                                    const ParameterList& parameters,
                                    const SafetensorsMetadata& metadata);

// How many ranks write: world ranks 0 to that less one.
int state_writers(const ProcessGrid& grid, const ParameterList& parameters);

// Writes all ranks' files into a directory that all see. Collective over the world: when it returns, on any rank,
// they are on the disk.
void save_parameters(const ProcessGrid& grid,
                     const ParameterList& parameters,
                     const std::string& directory,
                     const SafetensorsMetadata& metadata);

// Weights alone. Each rank reads its own slices. Throws kIo naming a missing, surplus or differently shaped tensor,
// before any parameter is changed. A parameter that is `optional` may be missing and then stays as it is.
void load_parameters(const ParameterList& parameters, const TensorSource& weights);

// The same from what save_parameters wrote, with the optimizer's state, and nothing may be missing.
// with_optimizer false: weights alone.
void load_parameters(const ProcessGrid& grid,
                     const ParameterList& parameters,
                     const std::string& directory,
                     bool with_optimizer);

// For a run that starts from another's weights: the moments of each parameter that the directory has them for,
// zero for others. Returns whether there are any. Throws kIo, before anything is
// changed, for moments of what is no parameter.
bool load_moments(const ParameterList& parameters, const std::string& directory);

}  // namespace evenkeel
