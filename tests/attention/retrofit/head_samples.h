// Queries and keys as trained heads have them: norms that fluctuate, some channels more than others, and
// directions that several rows share.
#pragma once

#include "attention/attention_config.h"
#include "attention/retrofit/calibration.h"

namespace evenkeel::testing {

enum class HeadKind {
    kFluctuating,  // rows of very different norms, and some channels that fluctuate more
    kTied,         // rows that are nearly all the same
    kBiased,       // keys that are mostly a bias
    kHot,          // logits of 100 and more
};
inline constexpr HeadKind kAllHeadKinds[] = {HeadKind::kFluctuating, HeadKind::kTied,
                                             HeadKind::kBiased, HeadKind::kHot};
const char* name_of(HeadKind kind);

AttentionConfig plain_attention(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim);

// [B, T, N, D] fp32.
Tensor make_heads(HeadKind kind, bool keys, const Shape& shape, std::uint64_t seed);

}  // namespace evenkeel::testing
