// What the attention heads of a model do, gathered over its forward passes: the kernels' own numbers, and
// how large queries and keys are before they are normalised. docs/telemetry.md defines each.
//
// B batch, T positions, L layers, H query heads, K key/value heads, D head width, P tensor-parallel size.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/flash_attention.h"
#include "attention/tensor_parallel_attention.h"
#include "framework/training/metrics.h"
#include "parallel/process_grid.h"

namespace evenkeel {

class HeadStatistics {
  public:
    // Of layers with these settings, alike but for norms, windows and rotation; device: where their passes are
    // made.
    HeadStatistics(std::vector<AttentionConfig> layers,
                   std::int64_t local_heads,
                   std::int64_t local_kv_heads,
                   Device device = Device::kCpu);

    // Takes in one layer's forward pass over `rows` tokens. The host does not wait.
    void add(std::size_t layer,
             const AttentionStats& stats,
             const AttentionSaved& saved,
             std::int64_t rows);
    // Counts the tokens of a pass, once for all layers: on the host, so that a replayed pass counts too.
    void count_rows(std::int64_t rows) { rows_ += rows; }
    // Over all ranks, of what was added since the last call; empty if nothing was:
    //   [L, H]  max_logit, max_logit_uncapped (with softcap), entropy, entropy_share, saturation,
    //           q_rms, q_rms_min
    //   [L, K]  k_rms, k_rms_min
    // Means weigh passes by their tokens. Collective; the host waits.
    std::vector<MetricTable> reduce(const ProcessGrid& grid);

    // Bytes that a model's statistics take on each rank.
    static std::size_t bytes(std::int64_t num_layers,
                             std::int64_t local_heads,
                             std::int64_t local_kv_heads);

  private:
    void clear();

    std::vector<AttentionConfig> layers_;
    std::int64_t local_heads_, local_kv_heads_;
    // Planes of a number for each layer and head, [planes, L, heads]; see cuda/head_statistics.h.
    Tensor q_max_, q_sum_, k_max_, k_sum_;
    std::int64_t rows_ = 0;
};

}  // namespace evenkeel
