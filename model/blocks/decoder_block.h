// The decoder blocks of a language model: attention and a feed-forward layer on a stream of hidden states.
// Which kind a model has, its architecture says:
//   residual_block.h  r = x + attention(x),  y = r + feed_forward(r), with norms before and after the layers
//   parallel_block.h  y = x + attention(n) + feed_forward(n), n = norm(x)
//   ngpt_block.h      both additions as steps on the unit sphere
//
// The stream is [B, T, C] as the layout's region holds it: each rank all rows, or with sequence parallelism its part
// of them, and then all that is said of B T rows below holds of that part.
//
// B batch, T positions, C width, P tensor-parallel size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "attention/tensor_parallel_attention.h"
#include "model/blocks/feed_forward.h"
#include "model/rules/weight_rule.h"
#include "model/telemetry/finite_probe.h"

namespace evenkeel {

// What forward keeps for backward. A kind of block leaves undefined what it has no use for, and backward makes again
// what forget() has dropped.
struct DecoderBlockSaved {
    Tensor x;                  // [B, T, C]
    AttentionSaved attention;  // its x is the normalised input, or x itself
    Tensor residual;           // [B, T, C], after attention's part of the block
    FeedForwardSaved feed_forward;
    Tensor rstd_attention, rstd_feed_forward;  // see norm.h, of the norms before the layers
    Tensor rstd_attention_post, rstd_feed_forward_post;  // of those after
    Tensor attention_out, feed_forward_out;              // [B, T, C], what the layers return
    Tensor attention_inverse, feed_forward_inverse;      // [B T, 2], see normalized_update.h
};

class DecoderBlock {
  public:
    // Attention is that of the layer. prefix: of parameter names ("layers.0"): attention.*, feed_forward.* and
    // those of the kind of block. The grid must outlive the block.
    DecoderBlock(const ProcessGrid& grid,
                 const ModelConfig& config,
                 std::int64_t layer,
                 DType type,
                 const std::string& prefix);
    virtual ~DecoderBlock() = default;

    virtual void initialize(std::uint64_t seed);

    // x and y [B, T, C]. stats null: no telemetry; probe null: no checks.
    virtual Tensor forward(const Tensor& x,
                           const SequenceLayout& layout,
                           DecoderBlockSaved& saved,
                           AttentionStats* stats,
                           FiniteProbe* probe) = 0;
    // Drops what backward makes again, as ModelConfig::recompute says: after a forward pass that backward follows,
    // once nobody else reads it.
    void forget(DecoderBlockSaved& saved) const;
    // gradient [B, T, C]: dy on entry, dx on return, in place. Adds to parameter gradients. Drops what it has read
    // as it goes. What it makes again has the bits that forward made, and no more messages than it takes.
    virtual void backward(const Tensor& gradient,
                          const SequenceLayout& layout,
                          DecoderBlockSaved& saved) = 0;
    // Forward for the next T tokens of a sequence whose earlier ones are in the cache; x whole on every rank.
    virtual Tensor decode(const Tensor& x, KvCache& cache) = 0;
    virtual void collect_parameters(ParameterList& list) = 0;

    TensorParallelAttention& attention() { return attention_; }
    LayerWeights weights() const;

  protected:
    void probe_attention(FiniteProbe& probe, const AttentionSaved& saved) const;

    std::string prefix_;
    Recompute recompute_;
    TensorParallelAttention attention_;
    FeedForward feed_forward_;

  private:
    bool gated_;  // the feed-forward layer is
    double weight_std_;
    double output_std_;
};

// Layer 0 .. L - 1 of a model; prefix "layers.N".
std::unique_ptr<DecoderBlock> make_decoder_block(const ProcessGrid& grid,
                                                 const ModelConfig& config,
                                                 std::int64_t layer,
                                                 DType type);

}  // namespace evenkeel
