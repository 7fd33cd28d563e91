// What one rank computes for a micro-batch, kernel by kernel, and how long each takes: the longer of its operations at
// the rate of the cores and its bytes at the rate of memory (Williams, Waterman, Patterson 2009, Roofline), and a
// fixed time a kernel.
//
// N tokens of the micro-batch, C width, Hl query and Kl key/value heads on the rank, D head width, F feed-forward width,
// g matrices into the feed-forward layer, V vocabulary, P tensor-parallel ranks, R rows of the stream on the rank (N,
// with sequence parallelism N/P), e bytes of an activation, T positions.
//
//   products   rows x inputs x outputs: N x C x (Hl + 2 Kl) D, N x Hl D x C, N x C x g F/P, N x F/P x C; in backward each
//              once for the gradient of its input and once for that of its weights, which it adds to what is there.
//              The head: N x C x V/P.
//   attention  4 D operations forward for each pair of query and key that the mask shows, and a head; 10 backward, which
//              makes the scores again. Unfused: all T^2 pairs, 8 backward, and the scores through memory, 13 bytes
//              a pair forward and 19 backward (products write or read 2 bytes; softmax reads 2 and writes 2, dropout
//              reads 2 and writes 3; backward in turn).
//   memory     bytes, forward and backward. norm: 2 e R C, 3 e R C; sum with the stream: 3 e R C each way; rotation with
//              QK-norm: 2 e N (Hl + Kl) D, 3 e N (Hl + Kl) D; activation: e N (g + 1) F/P, e N (2 g + 1) F/P; loss:
//              3 e N V/P. Where kernels are not fused: norms and rotation four times, activation 5/3, loss 10/3 of that
//              (operations on tensors in fp32, one at a time).
#pragma once

#include <vector>

#include "scaling/hardware.h"
#include "scaling/step_plan.h"

namespace evenkeel::scaling {

enum class Part {
    kFirstNorm,
    kQkv,
    kRotation,
    kAttention,
    kOutput,
    kFirstSum,
    kSecondNorm,
    kUp,
    kActivation,
    kDown,
    kSecondSum,
    kHead,
    kLoss,
};
enum class Kind { kProduct, kAttention, kMemory };

struct Op {
    Part part;
    Kind kind;
    double flops =
        0.0;  // done, which is more than the model's where backward of attention makes scores again
    double bytes = 0.0;
};

// Of one layer on one rank, for one micro-batch, in order.
std::vector<Op> layer_forward(const StepPlan& plan);
std::vector<Op> layer_backward(const StepPlan& plan);
// What layer_backward makes again before (Layout::again), as ops of layer_forward. kHalf's products have half of their
// operations and bytes.
std::vector<Op> layer_again(const StepPlan& plan);
// Output projection and loss, forward and backward.
std::vector<Op> head_forward(const StepPlan& plan);
std::vector<Op> head_backward(const StepPlan& plan);

double op_seconds(const Hardware& hardware,
                  const Shares& shares,
                  AttentionKernel kernel,
                  const Op& op,
                  bool backward);

// Seconds by kind.
struct Seconds {
    double products = 0.0, attention = 0.0, memory = 0.0;
    double total() const { return products + attention + memory; }
    Seconds& operator+=(const Seconds& other);
    Seconds operator*(double factor) const;
};
Seconds seconds_of(const Hardware& hardware,
                   const Shares& shares,
                   AttentionKernel kernel,
                   const std::vector<Op>& ops,
                   bool backward);

}  // namespace evenkeel::scaling
