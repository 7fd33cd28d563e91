// The back ends of embedding.h and of the cross-entropy in vocab.h: arguments have been checked, and none
// is empty. Internal.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {

// This rank's logits as rows, and what each row's token is.
struct LogitRows {
    Tensor logits;                 // [N, W], rows contiguous
    Tensor targets;                // [N] int32
    std::int64_t vocab_begin = 0;  // first token of this rank
    std::int64_t vocab_size = 0;   // of all ranks

    std::int64_t count() const { return logits.size(0); }
    std::int64_t width() const { return logits.size(1); }
};

namespace cpu {

void embedding_forward(const Tensor& tokens,
                       const Tensor& weight,
                       std::int64_t begin,
                       const Tensor& y);
void embedding_backward(const Tensor& dy,
                        const Tensor& tokens,
                        std::int64_t begin,
                        const Tensor& grad);

// maxima [N] of the rows; then, with the maxima over all ranks, sums [2, N]: of exponentials, and the
// target's logit or 0.
void cross_entropy_maxima(const LogitRows& rows, const Tensor& maxima);
void cross_entropy_sums(const LogitRows& rows, const Tensor& maxima, const Tensor& sums);
// log_sum_exp [N]; counted [1]; adds weight times the mean to loss [1]. All with the sums of all ranks.
void cross_entropy_finish(const LogitRows& rows,
                          const Tensor& maxima,
                          const Tensor& sums,
                          double weight,
                          const Tensor& log_sum_exp,
                          const Tensor& counted,
                          const Tensor& loss);
void cross_entropy_gradient(const LogitRows& rows,
                            const Tensor& log_sum_exp,
                            const Tensor& counted,
                            double loss_scale,
                            const Tensor& dlogits);  // [N, W]

}  // namespace cpu

namespace cuda {

void embedding_forward(const Tensor& tokens,
                       const Tensor& weight,
                       std::int64_t begin,
                       std::int64_t vocab_size,
                       const Tensor& y);
void embedding_backward(const Tensor& dy,
                        const Tensor& tokens,
                        std::int64_t begin,
                        const Tensor& grad);

// The same steps, but the logits are read once: the first step adds up exponentials too, of what stands
// below the row's own maximum, and the second brings them to the maxima over all ranks.
void cross_entropy_maxima(const LogitRows& rows,
                          const Tensor& maxima,
                          const Tensor& own_maxima,
                          const Tensor& sums);
void cross_entropy_sums(const Tensor& own_maxima, const Tensor& maxima, const Tensor& sums);
void cross_entropy_finish(const LogitRows& rows,
                          const Tensor& maxima,
                          const Tensor& sums,
                          double weight,
                          const Tensor& log_sum_exp,
                          const Tensor& counted,
                          const Tensor& loss);
void cross_entropy_gradient(const LogitRows& rows,
                            const Tensor& log_sum_exp,
                            const Tensor& counted,
                            double loss_scale,
                            const Tensor& dlogits);

}  // namespace cuda
}  // namespace evenkeel
