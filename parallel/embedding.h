// Look-up in a part of an embedding: rows begin, begin + 1, .. of a vocabulary [0, V). What is on the CPU is
// looked up there, on CUDA there; all tensors on one device.
//
// N tokens, C width, R rows on this rank.
#pragma once

#include "framework/tensor.h"

namespace evenkeel {

// y [N, C] = the tokens' rows of weight [R, C] (fp32 or bf16), zeros where a token's row is elsewhere.
// tokens [N] int32. A token outside [0, vocab_size) throws kInvalidArgument on the CPU; on CUDA, where
// the host does not see it, its row becomes NaN.
void embedding_forward(const Tensor& tokens,
                       const Tensor& weight,
                       std::int64_t begin,
                       std::int64_t vocab_size,
                       const Tensor& y);

// grad [R, C] fp32 += the rows of dy [N, C] (fp32 or bf16), each to its token's. The rows of a token are
// added one after the other in fp32, in the order of tokens: the same bits on every device and in every
// run. On CUDA a token outside the vocabulary adds nothing.
void embedding_backward(const Tensor& dy,
                        const Tensor& tokens,
                        std::int64_t begin,
                        std::int64_t vocab_size,
                        const Tensor& grad);

}  // namespace evenkeel
