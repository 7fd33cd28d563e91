// A block of nGPT (Loshchilov et al. 2024, eqs. 10 and 11): hidden states are unit vectors, and each layer moves
// them towards its own normalised output by a learned rate for each channel,
//
//   r = Norm(h + alpha_A (Norm(attention(h)) - h)),  y = Norm(r + alpha_M (Norm(feed_forward(r)) - r))
//
// without any other norm of the stream. alpha = |parameter| 0.05 sqrt(C), whose parameter begins as 1 / sqrt(C): so
// alpha is 0.05 at first, and a step of AdamW moves it by sqrt(C) 0.05 times the step.
#pragma once

#include "model/blocks/decoder_block.h"

namespace evenkeel {

class NgptBlock : public DecoderBlock {
  public:
    // Parameters of its own: attention_rate, feed_forward_rate [C].
    NgptBlock(const ProcessGrid& grid,
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
    // The stream after attention's part of the block, and after the feed-forward layer's.
    void add_attention(const SequenceLayout& layout, DecoderBlockSaved& saved);
    Tensor add_feed_forward(const SequenceLayout& layout,
                            DecoderBlockSaved& saved,
                            FiniteProbe* probe);

    double rate_factor_;  // from parameter to alpha
    Parameter attention_rate_, feed_forward_rate_;
};

}  // namespace evenkeel
