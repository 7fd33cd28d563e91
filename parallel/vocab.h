// Vocabulary-parallel embedding and cross-entropy: each rank holds its part of the rows of the embedding or of the
// output projection, and the full logits are not gathered in training. V need not be a multiple of P: parts are
// those of piece_range, V/P below stands for a rank's own, which may be empty.
//
// B batch, T positions, C width, V vocabulary, P tensor-parallel size.
#pragma once

#include <string>

#include "framework/parameter.h"
#include "parallel/process_grid.h"
#include "parallel/sequence_region.h"

namespace evenkeel {

// Throws on the first of `tokens`, int32 on the CPU, that is outside [0, vocab_size), or below `least`
// where that is -1 ("none").
void check_tokens(const char* op,
                  const char* name,
                  const Tensor& tokens,
                  std::int64_t vocab_size,
                  std::int32_t least);

class VocabParallelEmbedding {
  public:
    VocabParallelEmbedding(const ProcessGrid& grid,
                           const std::string& name,
                           std::int64_t vocab_size,
                           std::int64_t width,
                           DType type);

    // tokens [B, T] int32 on the weight's device, each in [0, V) (else as embedding.h says); returns
    // [B, T, C] as the region holds it.
    Tensor forward(const Tensor& tokens, const SequenceRegion& region = {}) const;
    // dy as forward's result. Adds to the weight gradient. Deterministic: rows are summed in token order.
    void backward(const Tensor& dy, const Tensor& tokens, const SequenceRegion& region = {});

    Parameter& weight() { return weight_; }  // [V/P, C]
    void collect_parameters(ParameterList& list);

  private:
    const ProcessGrid& grid_;
    Parameter weight_;
};

// Logits of the whole vocabulary, for those who want them: this rank's part [N, V/P], on the grid's device, becomes
// [N, V] fp32 on the CPU, the same bits on all TP ranks. Collective over TP; the host waits.
Tensor gather_vocabulary(const ProcessGrid& grid, const Tensor& logits, std::int64_t vocab_size);

// What cross_entropy_backward needs of the forward pass.
struct CrossEntropySaved {
    Tensor log_sum_exp;  // [B, T] fp32, over the whole vocabulary
    Tensor counted;      // [1] int32: how many targets are not -1
};

// Mean over tokens of log sum_v exp(z_v) - z_target, in fp32 from the local logits [B, T, V/P] (fp32 or
// bf16); weight times it is added to loss [1] fp64, on the logits' device, without waiting for it. Two
// small collectives over TP: the maximum, then (sum of exponentials, target logit). Target -1 is left out
// of the mean, which is 0 when nothing is left. Other targets outside [0, V) throw on the CPU; on CUDA the
// loss becomes NaN, and their rows of the gradient. The same bits on all TP ranks. The log-sum-exp is the
// usual one, of z - max z.
void cross_entropy_forward(const ProcessGrid& grid,
                           const Tensor& logits,
                           std::int64_t vocab_size,
                           const Tensor& targets,
                           CrossEntropySaved& saved,
                           double weight,
                           const Tensor& loss);
// The mean itself, for the host, which waits for it.
double mean_cross_entropy(const ProcessGrid& grid,
                          const Tensor& logits,
                          std::int64_t vocab_size,
                          const Tensor& targets,
                          CrossEntropySaved& saved);
// dlogits = (softmax - onehot) * loss_scale / number of counted tokens, over this rank's logits, in
// the logits' type; may alias logits.
void cross_entropy_backward(const ProcessGrid& grid,
                            const Tensor& logits,
                            std::int64_t vocab_size,
                            const Tensor& targets,
                            const CrossEntropySaved& saved,
                            double loss_scale,
                            const Tensor& dlogits);

}  // namespace evenkeel
