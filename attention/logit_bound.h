// How large attention logits can become, whatever the queries and keys are.
//
// N query heads and M key heads on this rank, D head width.
#pragma once

#include <vector>

#include "attention/attention_config.h"
#include "framework/tensor.h"

namespace evenkeel {

// The largest magnitude that logits of each of N query heads may have, from the gains as they are now
// (effective_gain's results: fp32 on the CPU, [N, D] or [D], [M, D] or [D]; undefined: none). With r_q and
// r_k the length that the norm gives a row (rms and layer_norm sqrt(D), l2 1; full_width sqrt(H D) and
// sqrt(K D), which one head may have to itself):
//
//   scale r_q r_k max over p of max|gq_p| max|gk_p|,  p the pairs of channels that turn together
//
// times YaRN's factor; with softcap c no more than c. Infinite where nothing bounds them. Rounding to the
// storage type comes on top. (Derivation: docs/math.md, "The bound on logits".)
std::vector<double> logit_bounds(const AttentionConfig& config,
                                 const Tensor& q_gain,
                                 const Tensor& k_gain,
                                 std::int64_t heads,
                                 std::int64_t kv_heads);

}  // namespace evenkeel
