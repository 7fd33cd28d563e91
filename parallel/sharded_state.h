// Parameters and optimizer state as unsharded safetensors files: written and read at any tensor-parallel
// size, bit for bit.
#pragma once

#include <string>

#include "framework/parameter.h"
#include "framework/storage/safetensors.h"
#include "framework/storage/tensor_source.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// The global tensor on the CPU of the TP group's rank 0, put together from the owners' parts of it: `local` is one
// of the parameter's tensors. Undefined on other ranks. Collective over the TP group.
Tensor gather_parameter(const ProcessGrid& grid, const Parameter& parameter, const Tensor& local);

// Writes DIR/model.safetensors (fp32 master weights under the parameters' names) and
// DIR/optimizer.safetensors (name + ".exp_avg", ".exp_avg_sq" of those that are trained). World rank 0 writes, one tensor in memory
// at a time; only owners of the first data-parallel replica send. Collective over the world: when it
// returns, on any rank, both files are on the disk.
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

// For a run that starts from another's weights: the moments of each parameter that DIR/optimizer.safetensors has
// them for, zero for others. Returns whether there is such a file with something in it. Throws kIo, before anything is
// changed, for moments of what is no parameter.
bool load_moments(const ParameterList& parameters, const std::string& directory);

}  // namespace evenkeel
