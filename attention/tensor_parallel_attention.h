// The attention layer, heads sharded over tensor-parallel ranks:
//
//   x [B, T, C] -> column-parallel QKV (+ biases) -> q [B, T, H/P, D], k, v [B, T, K/P, D] -> QK-norm -> RoPE
//     -> flash attention -> [B, T, H/P * D] -> row-parallel output -> sum over TP -> y [B, T, C]
//
// Gains and sinks that belong to a head live with it: no communication for the norm, forward or backward, but for
// one statistic over all heads (full_width_norm.h). With more ranks than KV heads each KV head lives on P/K ranks,
// whose W_k, W_v and K-gain gradients are summed over that replica group alone. V is never normalised.
//
// B batch, T positions, C model width, H query heads, K key/value heads, D head width, P ranks.
#pragma once

#include <memory>
#include <string>

#include "attention/attention_config.h"
#include "attention/flash_attention.h"
#include "attention/qk_norm_rope.h"
#include "attention/rope.h"
#include "framework/training/metrics.h"
#include "parallel/linear.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// What forward keeps for backward.
struct AttentionSaved {
    Tensor x;  // [B, T, C] as the layout's region holds it
    // [B, T, (H/P + 2 K/P) D], before the norm; without norm q and k are rotated here, unless keeps_qkv
    Tensor qkv;
    Tensor q, k;            // [B, T, H/P, D], [B, T, K/P, D], normalised and rotated
    Tensor rstd_q, rstd_k;  // [B, T, H/P], [B, T, K/P]; full width: [B, T]; undefined without norm
    Tensor q_gain, k_gain;  // as the norm takes them (gain.h); undefined without
    Tensor out;             // [B, T, H/P, D]
    Tensor lse;             // [B, H/P, T]
    // Set by who wants to look at q and k as the projections give them, at the price of a copy.
    bool keeps_qkv = false;
};

// Where the tokens of a batch stand.
struct SequenceLayout {
    Tensor positions;  // [B, T] int32, undefined: 0 .. T-1
    // More than any position; 0: read from `positions`, which on CUDA the host waits for.
    std::int64_t positions_end = 0;
    std::vector<std::int32_t> cu_seqlens;  // see AttentionMask; positions then restart per document
    SequenceRegion region;  // how what is before and after the layer's products is held
};

// Keys and values of the tokens generated so far, for decoding.
struct KvCache {
    Tensor k, v;  // [B, capacity, K/P, D]
    std::int64_t length = 0;
};

class TensorParallelAttention {
  public:
    // prefix: of parameter names ("layers.0.attention"): wq, wk, wv, wo, and where the configuration has
    // them wq_bias, wk_bias, wv_bias, wo_bias, q_gain, k_gain (not of a factor of the logits, which is q's) and
    // sink. The grid must outlive the layer.
    TensorParallelAttention(const ProcessGrid& grid,
                            const AttentionConfig& config,
                            std::int64_t width,
                            DType type,
                            const std::string& prefix);

    // Initialises all weights: normal with the given deviations (wo gets its own), gains to gain_init, sinks to
    // sink_init.
    void initialize(double weight_std, double output_std, std::uint64_t seed);

    // For all passes from now on: lambda [1] fp32 on the grid's device, which the layer shares with its owner and
    // reads anew in each pass (QkNormRopeOptions::lambda, gain.h). Undefined, the default: the whole norm. Backward
    // must find the value that forward has read.
    void set_lambda(const Tensor& lambda);

    // x and y [B, T, C] as the layout's region holds them. stats null: no telemetry.
    Tensor forward(const Tensor& x,
                   const SequenceLayout& layout,
                   AttentionSaved& saved,
                   AttentionStats* stats);
    // The two halves of it: all that backward reads, from x; and the output projection.
    void attend(const Tensor& x,
                const SequenceLayout& layout,
                AttentionSaved& saved,
                AttentionStats* stats);
    Tensor project(const SequenceLayout& layout, const AttentionSaved& saved) const;
    // Drops q and k after norm and rotation, where they can be made again without a message; and makes them again.
    void forget_turned(AttentionSaved& saved) const;
    void turn_again(const SequenceLayout& layout, AttentionSaved& saved);
    // dy like y; adds to parameter gradients; returns dx.
    Tensor backward(const Tensor& dy, const SequenceLayout& layout, const AttentionSaved& saved);
    // Appends x's T tokens to the cache, at the positions that follow it, and attends to all of it (or to the
    // window); forward only. Throws when the cache is full, or when attention is not causal.
    Tensor decode(const Tensor& x, KvCache& cache);
    KvCache make_cache(std::int64_t batch, std::int64_t capacity) const;

    const AttentionConfig& config() const { return config_; }
    // Weights by role. Gains and sinks that there are not have no name and no memory; biases that there are not
    // are null.
    const Parameter& wq() const { return qkv_->part(0); }
    const Parameter& wk() const { return qkv_->part(1); }
    const Parameter& wv() const { return qkv_->part(2); }
    const Parameter& wo() const { return output_->weight(); }
    const Parameter* wq_bias() const { return qkv_->has_bias() ? &qkv_->bias(0) : nullptr; }
    const Parameter* wk_bias() const { return qkv_->has_bias() ? &qkv_->bias(1) : nullptr; }
    const Parameter& q_gain() const { return q_gain_; }
    const Parameter& k_gain() const { return k_gain_; }
    const Parameter& sink() const { return sink_; }
    std::int64_t local_heads() const { return local_heads_; }
    std::int64_t local_kv_heads() const { return local_kv_heads_; }
    void collect_parameters(ParameterList& list);
    // The heads of q (part 0), k (1) or v (2) in a packed tensor, [B, T, N, D].
    Tensor heads(const Tensor& qkv, int part) const;

  private:
    bool has_norm() const { return config_.qk_norm.kind != QkNormConfig::Kind::kNone; }
    // Whether the kernels take the gains' parameters themselves.
    bool has_kernel_gains() const;
    bool is_full_width() const { return config_.qk_norm.scope == QkNormConfig::Scope::kFullWidth; }
    const RopeTable& rope_table(std::int64_t positions);  // of positions 0 .. positions-1 at least
    QkNormRopeOptions norm_options() const;
    void turn(const Tensor& q,
              const Tensor& k,
              const SequenceLayout& layout,
              AttentionSaved& saved);
    // Normalises and turns q and k into saved.q and saved.k; fills in what backward needs of it.
    void normalize(const Tensor& q,
                   const Tensor& k,
                   const RopeTable& rope,
                   const Tensor& positions,
                   AttentionSaved& saved) const;
    void normalize_backward(const Tensor& dq,
                            const Tensor& dk,
                            const RopeTable& rope,
                            const Tensor& positions,
                            const AttentionSaved& saved) const;
    AttentionOptions attention_options(const SequenceLayout& layout) const;

    const ProcessGrid& grid_;
    AttentionConfig config_;
    DType type_;
    std::int64_t local_heads_;
    std::int64_t local_kv_heads_;
    std::unique_ptr<ColumnParallelLinear> qkv_;
    std::unique_ptr<RowParallelLinear> output_;
    Parameter q_gain_, k_gain_, sink_;  // without a name where there are none
    Tensor zero_sink_;                  // [H/P], of the off-by-one softmax
    Tensor lambda_;                     // see set_lambda
    RopeTable rope_;                    // grows to the longest sequence seen
};

}  // namespace evenkeel
