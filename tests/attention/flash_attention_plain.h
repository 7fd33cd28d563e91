// What the tests of flash attention on every device measure it by: the double-precision reference,
// and a plain implementation in the same storage type.
#pragma once

#include <vector>

#include "attention/reference_attention.h"
#include "tests/support/data.h"

namespace evenkeel::testing {

struct FlashInputs {
    Tensor q, k, v, dout;  // on the CPU
    ReferenceShape shape;
};
// dout is Gaussian, the others of that kind. fp32, bf16 or fp16.
FlashInputs make_flash_inputs(const ReferenceShape& shape,
                              DType dtype,
                              DataKind kind,
                              std::uint64_t seed = 1);

struct FlashGradients {
    Tensor dq, dk, dv;
    Tensor dsink{};  // undefined without a sink
};

struct PlainFlash {
    Tensor out, lse;
    FlashGradients gradients;
};
// Attention as one writes it without thinking of speed: fp32 sums, the whole row of probabilities,
// what a matrix product reads and what leaves rounded to the storage type. With a sink gradients use
// dout . out with out as it leaves, as the contract has it for dsink; without, sum p dp.
PlainFlash run_plain_flash(const FlashInputs& in, const AttentionOptions& options);

struct FlashTruth {
    ReferenceResult forward;
    ReferenceGradients backward;
};
FlashTruth run_flash_reference(const FlashInputs& in, const AttentionOptions& options);

// The project's rule for outputs: at most twice the plain implementation's error; and telemetry,
// unless stats is null, to what fp32 logits can tell.
void expect_forward_near_truth(const Tensor& out,
                               const Tensor& lse,
                               const AttentionStats* stats,
                               const PlainFlash& plain,
                               const ReferenceResult& truth);

// max_logit_uncapped, entropy_share and saturation, to what fp32 logits can tell.
void expect_telemetry_near_truth(const AttentionStats& stats, const ReferenceResult& truth);

// The project's rule for gradients: at most three times the plain implementation's error. Where all
// logits are tied, dq and dk are sums of terms of size 10 that cancel to 0: there the roundings
// that remain are small.
void expect_gradients_near_truth(const FlashGradients& got,
                                 const FlashGradients& plain,
                                 const FlashTruth& truth);

}  // namespace evenkeel::testing
