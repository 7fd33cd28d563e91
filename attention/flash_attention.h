// Exact attention without T x S memory: softmax(scale q k^T + mask) v, tile by tile with a running
// maximum (Dao et al. 2022, FlashAttention, algorithm 1; Dao 2023, FlashAttention-2, section 3.1).
//
// B batch, T query positions, S key positions, H query heads, K key/value heads (H a multiple of K;
// query head h reads key head h / (H/K)), D head width. All head counts are this rank's. CPU: fp32
// and bf16; D 32, 64, 80, 96, 128, 192 or 256. CUDA: fp32 (slow), bf16, fp16; D 64, 96, 128 or 256;
// rows aligned to 16 bytes (base address and strides); work goes to the current stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel {

struct AttentionMask {
    // Query t stands at key position t + S - T (bottom-right aligned) and sees no later key.
    bool causal = true;
    // Sees only keys less than `window` positions away: position - window < j (and, when not
    // causal, j < position + window). 0: no limit.
    std::int64_t window = 0;
    // Packed documents: ascending token indices 0 .. T of document boundaries; a token sees its own
    // document only. Needs B = 1 and T = S. Empty: one document. On CUDA every call
    // copies 8 bytes a token to the GPU for them, and the host waits for the stream.
    std::vector<std::int32_t> cu_seqlens;
};

struct AttentionOptions {
    AttentionMask mask;
    double softmax_scale = 0.0;  // 0: 1 / sqrt(D); else from 1e-30 to 1e30
    // c > 0: logits become c tanh(s / c), after the scale and before the mask (Gemma Team 2024,
    // Gemma 2, section 2). From 1e-6 to 1e6; 0: none.
    double softcap = 0.0;
    // [H] fp32, this rank's heads: the logit, after scale and cap, of one more key whose value is
    // zero, seen by every query. Zeros: the softmax with 1 added to its denominator (Miller 2023).
    // Undefined: none.
    Tensor sink;
};

// Per-head telemetry from inside the forward kernel, fp32 [H], this rank's heads. Forward makes the
// tensors. Rows are queries with a visible key; the last two are over those that see two or more, and 0
// if there is none. A sink takes part in probabilities, entropies and numbers of keys, but is no logit
// for the maximum.
struct AttentionStats {
    Tensor max_logit;           // largest scaled (and capped) logit in sight; -inf if there is none
    Tensor max_logit_uncapped;  // the same before softcap; equal without
    Tensor entropy;             // mean over rows of -sum p ln p, in nats; 0 if there is none
    Tensor entropy_share;       // mean over rows of -sum p ln p / ln(keys in sight): 1 is uniform
    Tensor saturation;  // share of rows whose largest probability is 1 - 2^-9 or more: 1 in bf16
};

// q [B, T, H, D], k and v [B, S, K, D], one type for all, any strides with contiguous rows of D.
// out like q, in memory of its own; lse [B, H, T] fp32, natural logarithm of sum exp(scaled
// logits), the sink's included. Rows with no visible key: out 0, lse -inf (with a sink: its logit), left out
// of the telemetry. NaN in gives NaN
// out; one in v (not in k) may also reach queries nearby that do not see it. stats null: no
// telemetry. Entropy by docs/math.md. The result does not depend on the number of threads.
void flash_attention_forward(const Tensor& q,
                             const Tensor& k,
                             const Tensor& v,
                             const AttentionOptions& options,
                             const Tensor& out,
                             const Tensor& lse,
                             AttentionStats* stats);

// Gradients from dout (like out), with probabilities recomputed from lse (Dao 2023, algorithm 2).
// dq like q, dk and dv like k; overwritten; may be slices of one packed tensor, but no input. GQA
// sums over a group's heads in fp32. dsink [H] fp32, added to; undefined: not wanted, or no sink.
//   dsink_h += - sum over rows of e^(sink_h - lse) (dout . out)
// Deterministic. A NaN may reach gradients of tokens nearby too.
void flash_attention_backward(const Tensor& q,
                              const Tensor& k,
                              const Tensor& v,
                              const Tensor& out,
                              const Tensor& lse,
                              const Tensor& dout,
                              const AttentionOptions& options,
                              const Tensor& dq,
                              const Tensor& dk,
                              const Tensor& dv,
                              const Tensor& dsink = {});

// Bytes that a call makes for itself and gives back, beside arguments and results, for T = S and one
// document; logits whose lse is too large for the storage type (see docs/math.md) take more in backward on the
// CPU. Known without the device, so for one that this build lacks too.
struct FlashAttentionShape {
    std::int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;  // B, T, H, K, D
    DType dtype = DType::kBFloat16;
    Device device = Device::kCpu;
    bool telemetry = false, sink = false;
};
struct FlashAttentionScratch {
    std::size_t forward = 0, backward = 0;
};
FlashAttentionScratch flash_attention_scratch(const FlashAttentionShape& shape);

}  // namespace evenkeel
