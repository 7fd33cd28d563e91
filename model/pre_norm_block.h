// A pre-norm decoder block (Xiong et al. 2020, figure 1b):
//
//   r = x + attention(norm(x)),  y = r + feed_forward(norm(r))
//
// with RMSNorm. The residual stream is kept in the compute type; each add rounds once.
#pragma once

#include "model/decoder_block.h"
#include "model/rms_norm.h"

namespace evenkeel {

class PreNormBlock : public DecoderBlock {
  public:
    // Parameters of its own: attention_norm, feed_forward_norm.
    PreNormBlock(const ProcessGrid& grid,
                 const ModelConfig& config,
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
                  const DecoderBlockSaved& saved) override;
    Tensor decode(const Tensor& x, KvCache& cache) override;
    void collect_parameters(ParameterList& list) override;

  private:
    RmsNorm attention_norm_;
    RmsNorm feed_forward_norm_;
};

}  // namespace evenkeel
