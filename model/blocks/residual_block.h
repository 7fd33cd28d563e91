// A decoder block that adds what its layers return to the residual stream, with a norm before each layer, after
// it, or both:
//
//   r = x + post(attention(pre(x))),  y = r + post(feed_forward(pre(r)))
//
// pre_norm has the norms before (Xiong et al. 2020, figure 1b), post_norm those after (OLMo 2, Team OLMo 2024,
// section 3.1), sandwich_norm both (Gemma 2, Gemma Team 2024, section 2). The residual stream is kept in the
// compute type; each add rounds once.
#pragma once

#include <optional>

#include "model/blocks/decoder_block.h"
#include "model/blocks/norm.h"

namespace evenkeel {

class ResidualBlock : public DecoderBlock {
  public:
    // Parameters of its own, as far as the architecture has them: attention_norm, attention_post_norm,
    // feed_forward_norm, feed_forward_post_norm.
    ResidualBlock(const ProcessGrid& grid,
                  const ModelConfig& config,
                  std::int64_t layer,
                  DType type,
                  const std::string& prefix);

    void initialize(std::uint64_t seed) override;
    Tensor forward(const Tensor& x,
                   const SequenceLayout& layout,
                   DecoderBlockSaved& saved,
                   AttentionStats* stats,
                   FiniteProbe* probe) override;
    void backward(const Tensor& gradient,
                  const SequenceLayout& layout,
                  DecoderBlockSaved& saved) override;
    Tensor decode(const Tensor& x, KvCache& cache) override;
    void collect_parameters(ParameterList& list) override;

  private:
    // The norms around one of the two layers.
    struct Norms {
        std::optional<Norm> pre, post;
    };
    static Norms make_norms(const ProcessGrid& grid,
                            const ModelConfig& config,
                            const std::string& layer);

    // From saved.x: what attention's output projection reads.
    void attend(const SequenceLayout& layout, DecoderBlockSaved& saved, AttentionStats* stats);
    // From there: the stream after attention's part of the block.
    void add_attention(const SequenceLayout& layout, DecoderBlockSaved& saved, FiniteProbe* probe);
    // All that backward reads, from saved.x.
    void make_again(const SequenceLayout& layout, DecoderBlockSaved& saved);

    Norms of_attention_, of_feed_forward_;
};

}  // namespace evenkeel
