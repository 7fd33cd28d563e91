// Attention with optional QK-norm and rotary embedding, forward and backward, written for clarity in double
// precision with the whole matrix of probabilities: the oracle for tests and for docs/math.md. Nothing here
// shares code with the fast paths, the mask included.
//
// All tensors are row-major vectors of double in the shapes given. B batch, T query positions, S key
// positions, H query heads, K key/value heads, D head width, R rotary_dim.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/flash_attention.h"
#include "attention/qk_norm_rope.h"
#include "attention/rope.h"

namespace evenkeel {

// What happens to q or k before the logits: z = (gain + gain_offset) u, u the row normalised as
// QkNormKind says, then rotation of channel pair p by positions[t] * frequencies[p], times magnitude.
struct ReferenceQkNormRope {
    QkNormKind kind = QkNormKind::kNone;
    bool full_width = false;  // the row is all N D channels of a token, not the D of one head
    double eps = 1e-6;
    double gain_offset = 0.0;
    std::vector<double> gain;         // [N, D] or [D]; empty: all ones
    std::vector<double> frequencies;  // [R/2]; empty: no rotation
    double magnitude = 1.0;
    RopeLayout layout = RopeLayout::kHalfSplit;
    std::vector<std::int64_t> positions;  // [T], the same for the whole batch; empty: 0, 1, ...
};

// x and the result [B, T, N, D].
std::vector<double> reference_qk_norm_rope(const std::vector<double>& x,
                                           std::int64_t B,
                                           std::int64_t T,
                                           std::int64_t N,
                                           std::int64_t D,
                                           const ReferenceQkNormRope& options);

struct ReferenceQkNormRopeGradients {
    std::vector<double> dx;     // [B, T, N, D]
    std::vector<double> dgain;  // like gain
};
ReferenceQkNormRopeGradients reference_qk_norm_rope_backward(const std::vector<double>& dy,
                                                             const std::vector<double>& x,
                                                             std::int64_t B,
                                                             std::int64_t T,
                                                             std::int64_t N,
                                                             std::int64_t D,
                                                             const ReferenceQkNormRope& options);

struct ReferenceShape {
    std::int64_t B, T, S, H, K, D;
};

struct ReferenceOptions {
    AttentionOptions attention;
    ReferenceQkNormRope q, k;
};

// Whether query t of T sees key j of S, straight from the words of AttentionMask.
bool reference_sees(
    const AttentionMask& mask, std::int64_t T, std::int64_t S, std::int64_t t, std::int64_t j);

struct ReferenceResult {
    std::vector<double> out;  // [B, T, H, D]; 0 for rows that see nothing
    std::vector<double> lse;  // [B, H, T]; for those -inf, or the sink
    // [H], by the words of AttentionStats.
    std::vector<double> max_logit, max_logit_uncapped, entropy, entropy_share, saturation;
};
// q [B, T, H, D]; k, v [B, S, K, D].
ReferenceResult reference_attention_forward(const ReferenceShape& shape,
                                            const std::vector<double>& q,
                                            const std::vector<double>& k,
                                            const std::vector<double>& v,
                                            const ReferenceOptions& options);

struct ReferenceGradients {
    std::vector<double> dq, dk, dv;        // like q, k, v
    std::vector<double> dq_gain, dk_gain;  // like the gains
    std::vector<double> dsink;             // [H]; empty without a sink
};
ReferenceGradients reference_attention_backward(const ReferenceShape& shape,
                                                const std::vector<double>& q,
                                                const std::vector<double>& k,
                                                const std::vector<double>& v,
                                                const std::vector<double>& dout,
                                                const ReferenceOptions& options);

}  // namespace evenkeel
