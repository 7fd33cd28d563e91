// Per-head max logit and entropy, gathered over the forward passes of a model.
//
// L layers, H query heads, P tensor-parallel size.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/flash_attention.h"
#include "framework/metrics.h"
#include "parallel/process_grid.h"

namespace evenkeel {

class HeadStatistics {
  public:
    // device: of the statistics that are added.
    HeadStatistics(std::int64_t num_layers, std::int64_t local_heads, Device device = Device::kCpu);

    // Memory for one layer's statistics, [H/P] each.
    AttentionStats make_stats() const;
    // Takes in one layer's statistics of a pass over `rows` tokens. The host does not wait.
    void add(std::size_t layer, const AttentionStats& stats, std::int64_t rows);
    // Counts the tokens of a pass, once for all layers: on the host, so that a replayed pass counts too.
    void count_rows(std::int64_t rows) { rows_ += rows; }
    // "max_logit" and "entropy" over all ranks, [L, H], of what was added since the last call; empty if
    // nothing was. Collective; the host waits.
    std::vector<MetricTable> reduce(const ProcessGrid& grid);

  private:
    void clear();
    std::int64_t num_layers_;
    std::int64_t local_heads_;
    Tensor max_logit_;    // [L, H/P]
    Tensor entropy_sum_;  // [L, H/P], weighted by rows
    std::int64_t rows_ = 0;
};

}  // namespace evenkeel
