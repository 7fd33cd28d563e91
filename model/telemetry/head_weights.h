// What a model's weights say of its attention heads: gains, the bound that they put on logits, and how
// large the rows of W_q and W_k and their biases are. docs/telemetry.md defines each.
//
// L layers, H query heads, K key/value heads.
#pragma once

#include <vector>

#include "attention/attention_config.h"
#include "framework/training/metrics.h"
#include "model/rules/weight_rule.h"
#include "parallel/process_grid.h"

namespace evenkeel {

//   [L, H]  q_gain_min, q_gain_max, q_gain_rms where q has gains; logit_bound where something bounds the
//           logits; wq_norm; wq_bias_norm where q has a bias
//   [L, K]  k_gain_min, k_gain_max, k_gain_rms where k has gains; wk_norm; wk_bias_norm
// attention: of each layer. Of layers beside others that have them, NaN stands for gains and infinity for a bound
// that there is not. lambda: of a norm that comes in (QkNormRopeOptions); below 1 only a softcap bounds logits, and
// gains are what they are at 1. Collective over the TP group; the host waits.
std::vector<MetricTable> head_weight_tables(const ProcessGrid& grid,
                                            const std::vector<AttentionConfig>& attention,
                                            const std::vector<LayerWeights>& layers,
                                            double lambda = 1.0);

}  // namespace evenkeel
