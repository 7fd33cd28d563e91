// The feed-forward layer of a decoder block: gated (Shazeer 2020, eq. 6), w_down (silu(w_gate x) * w_up x) or the
// same with gelu, or w_down gelu(w_up x). The inner width is cut over tensor-parallel ranks.
//
// B batch, T positions, C width, F feed-forward width, P tensor-parallel size.
#pragma once

#include <cstdint>
#include <string>

#include "model/model_config.h"
#include "model/telemetry/finite_probe.h"
#include "parallel/linear.h"

namespace evenkeel {

// What forward keeps for backward, which drops it as it goes.
struct FeedForwardSaved {
    Tensor x;       // [B, T, C] as the region holds it
    Tensor inner;   // [B, T, 2 F/P]: gate, then up; [B, T, F/P] with GELU
    Tensor hidden;  // [B, T, F/P], after the activation
};

class FeedForward {
  public:
    // prefix: of parameter names ("layers.0.feed_forward"): w_gate (gated only), w_up, w_down, and with
    // biases w_gate_bias, w_up_bias, w_down_bias.
    FeedForward(const ProcessGrid& grid,
                const ModelConfig& config,
                DType type,
                const std::string& prefix);

    // Normal weights with the given deviations; w_down gets output_std.
    void initialize(double weight_std, double output_std, std::uint64_t seed);

    // x and y [B, T, C] as the region holds them.
    Tensor forward(const Tensor& x,
                   const SequenceRegion& region,
                   FeedForwardSaved& saved,
                   FiniteProbe* probe) const;
    // What backward reads of it, all but the last product.
    void activate(const Tensor& x, const SequenceRegion& region, FeedForwardSaved& saved) const;
    // hidden again, from inner.
    void activate_again(FeedForwardSaved& saved) const;
    // dy like y; adds to parameter gradients; returns dx.
    Tensor backward(const Tensor& dy, const SequenceRegion& region, FeedForwardSaved& saved);

    // w_gate (gated only) and w_up, in this order; then what maps the inner width back.
    const Parameter& in(int index) const { return in_.part(index); }
    const Parameter& down() const { return down_.weight(); }
    void collect_parameters(ParameterList& list);

  private:
    std::string prefix_;
    Activation activation_;
    ColumnParallelLinear in_;
    RowParallelLinear down_;
};

}  // namespace evenkeel
