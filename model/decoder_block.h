// A pre-norm decoder block (Xiong et al. 2020, figure 1b):
//
//   r = x + attention(norm(x)),  y = r + feed_forward(norm(r))
//
// with RMSNorm. The residual stream is kept in the compute type; each add rounds once.
//
// B batch, T positions, C width, P tensor-parallel size.
#pragma once

#include <cstdint>
#include <string>

#include "attention/tensor_parallel_attention.h"
#include "model/feed_forward.h"
#include "model/finite_probe.h"
#include "model/rms_norm.h"
#include "model/weight_rule.h"

namespace evenkeel {

// What forward keeps for backward.
struct DecoderBlockSaved {
    Tensor x;                  // [B, T, C]
    Tensor rstd_attention;     // [B T]
    AttentionSaved attention;  // its x is the normalised input
    Tensor residual;           // [B, T, C], after attention's add
    Tensor rstd_feed_forward;  // [B T]
    FeedForwardSaved feed_forward;
};

class DecoderBlock {
  public:
    // prefix: of parameter names ("layers.0"): attention_norm, attention.*, feed_forward_norm,
    // feed_forward.*. The grid must outlive the block.
    DecoderBlock(const ProcessGrid& grid,
                 const ModelConfig& config,
                 DType type,
                 const std::string& prefix);

    void initialize(std::uint64_t seed);

    // x and y [B, T, C], replicated over TP. stats null: no telemetry; probe null: no checks.
    Tensor forward(const Tensor& x,
                   const SequenceLayout& layout,
                   DecoderBlockSaved& saved,
                   AttentionStats* stats,
                   FiniteProbe* probe);
    // gradient [B, T, C]: dy on entry, dx on return, in place. Adds to parameter gradients.
    void backward(const Tensor& gradient,
                  const SequenceLayout& layout,
                  const DecoderBlockSaved& saved);
    // Forward for the next T tokens of a sequence whose earlier ones are in the cache.
    Tensor decode(const Tensor& x, KvCache& cache);

    TensorParallelAttention& attention() { return attention_; }
    LayerWeights weights() const;
    void collect_parameters(ParameterList& list);

  private:
    std::string prefix_;
    bool gated_;  // the feed-forward layer is
    double weight_std_;
    double output_std_;
    RmsNorm attention_norm_;
    TensorParallelAttention attention_;
    RmsNorm feed_forward_norm_;
    FeedForward feed_forward_;
};

}  // namespace evenkeel
