// The one place where layer results and gradients are summed across ranks. Layers never call a
// communicator themselves, so another order of summation (a fixed tree over virtual shards, say) can be
// put here without touching them.
#pragma once

#include "framework/parameter.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// Sums the parts of a row-parallel product, or of an input gradient of a column-parallel one, over the
// tensor-parallel group, in place.
void sum_partial_products(const ProcessGrid& grid, const Tensor& tensor);

// Completes every parameter's gradient: sums what GradientSum declares over TP (or over the replica group
// of num_kv_heads), then averages over DP. Small parameters of one kind travel in one buffer, large ones
// where they are. Collective; every rank passes the same list in the same order.
void reduce_gradients(const ProcessGrid& grid,
                      const ParameterList& parameters,
                      std::int64_t num_kv_heads);

// L2 norm over all parameters' gradients, each element of each global tensor counted once (owners only).
// Summed in double. The same bits on all ranks. Collective.
double gradient_norm(const ProcessGrid& grid, const ParameterList& parameters);

}  // namespace evenkeel
