// Stands in for the CUDA sources of this folder in a build without CUDA.
#include "attention/cuda/flash_attention.h"
#include "attention/cuda/full_width_norm.h"
#include "attention/cuda/gain.h"
#include "attention/cuda/qk_norm_rope.h"
#include "attention/cuda/token_dots.h"

namespace evenkeel::cuda {
namespace {

[[noreturn]] void throw_not_built(const char* op) {
    throw_error(ErrorCode::kNotBuilt, op,
                "device: got cuda, want cpu (this build has no CUDA back end)");
}

}  // namespace

void flash_attention_forward(const Tensor&,
                             const Tensor&,
                             const Tensor&,
                             const AttentionOptions&,
                             const Tensor&,
                             const Tensor&,
                             AttentionStats*) {
    throw_not_built("flash_attention_forward");
}
void flash_attention_backward(const Tensor&,
                              const Tensor&,
                              const Tensor&,
                              const Tensor&,
                              const Tensor&,
                              const Tensor&,
                              const AttentionOptions&,
                              const Tensor&,
                              const Tensor&,
                              const Tensor&,
                              const Tensor&) {
    throw_not_built("flash_attention_backward");
}
void finish_full_width(const Tensor&, const float (&)[2], float) {
    throw_not_built("full_width_norm");
}
void qk_norm_rope_forward(std::span<const QkNormRopePart>,
                          const RopeTable&,
                          const Tensor&,
                          const QkNormRopeOptions&) {
    throw_not_built("qk_norm_rope_forward");
}
void qk_norm_rope_backward(std::span<const QkNormRopeGradientPart>,
                           const RopeTable&,
                           const Tensor&,
                           const QkNormRopeOptions&) {
    throw_not_built("qk_norm_rope_backward");
}

void effective_gain(const Tensor&, const GainRule&, const Tensor&) {
    throw_not_built("effective_gain");
}
void add_gain_gradient(const Tensor&, const Tensor&, const GainRule&, const Tensor&) {
    throw_not_built("add_gain_gradient");
}
void token_dots(const Tensor&, const Tensor&, const Tensor&) { throw_not_built("token_dots"); }

}  // namespace evenkeel::cuda
