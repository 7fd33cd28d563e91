// Tables with a number for each layer and head, put together from what the tensor-parallel ranks hold.
#pragma once

#include <string>
#include <vector>

#include "framework/training/metrics.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// local [M, L, N] fp32 on the CPU: M tables of this rank's N heads. Returns one table a name, [L, heads],
// the heads in order. replicas: how many successive ranks hold the same heads (Sharding::replicas); the
// first of them speaks. Collective over the TP group.
std::vector<MetricTable> gather_heads(const ProcessGrid& grid,
                                      const std::vector<std::string>& names,
                                      const Tensor& local,
                                      int replicas = 1);

}  // namespace evenkeel
