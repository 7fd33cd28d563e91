// A decoder block whose two layers read one norm and add to the stream side by side (GPT-J; Wang and Komatsuzaki
// 2021):
//
//   y = x + attention(n) + feed_forward(n),  n = norm(x)
#pragma once

#include "model/blocks/decoder_block.h"
#include "model/blocks/norm.h"

namespace evenkeel {

class ParallelBlock : public DecoderBlock {
  public:
    // Parameters of its own: attention_norm.
    ParallelBlock(const ProcessGrid& grid,
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
    const ProcessGrid& grid_;
    Norm norm_;
};

}  // namespace evenkeel
