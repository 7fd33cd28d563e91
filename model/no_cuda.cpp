// Stands in for the CUDA sources of this folder in a build without CUDA.
#include "model/cuda/elementwise.h"
#include "model/cuda/gain_rules.h"
#include "model/cuda/head_statistics.h"
#include "model/cuda/logit_clip.h"
#include "model/ops/normalized_update_backends.h"
#include "model/ops/spectral_norm_backends.h"
#include "model/ops/unit_weights_backends.h"

namespace evenkeel::cuda {
namespace {

[[noreturn]] void throw_not_built(const char* op) {
    throw_error(ErrorCode::kNotBuilt, op,
                "device: got cuda, want cpu (this build has no CUDA back end)");
}

}  // namespace

void rms_norm_forward(const Tensor&, const Tensor&, double, const Tensor&, const Tensor&, double) {
    throw_not_built("rms_norm_forward");
}
void rms_norm_backward(const Tensor&,
                       const Tensor&,
                       const Tensor&,
                       const Tensor&,
                       bool,
                       const Tensor&,
                       const Tensor&,
                       double) {
    throw_not_built("rms_norm_backward");
}
void layer_norm_forward(
    const Tensor&, const Tensor&, const Tensor&, double, const Tensor&, const Tensor&, double) {
    throw_not_built("layer_norm_forward");
}
void layer_norm_backward(const Tensor&,
                         const Tensor&,
                         const Tensor&,
                         const Tensor&,
                         bool,
                         const Tensor&,
                         const Tensor&,
                         const Tensor&,
                         double) {
    throw_not_built("layer_norm_backward");
}
void swiglu_forward(const Tensor&, const Tensor&) { throw_not_built("swiglu_forward"); }
void swiglu_backward(const Tensor&, const Tensor&, const Tensor&) {
    throw_not_built("swiglu_backward");
}
void geglu_forward(const Tensor&, const Tensor&) { throw_not_built("geglu_forward"); }
void geglu_backward(const Tensor&, const Tensor&, const Tensor&) {
    throw_not_built("geglu_backward");
}
void gelu_forward(const Tensor&, const Tensor&) { throw_not_built("gelu_forward"); }
void gelu_backward(const Tensor&, const Tensor&, const Tensor&) {
    throw_not_built("gelu_backward");
}
void add_in_place(const Tensor&, const Tensor&) { throw_not_built("add_in_place"); }
void scale_in_place(const Tensor&, double) { throw_not_built("scale_in_place"); }
void add_head_statistics(const LayerHeads&, const LayerPlanes&) {
    throw_not_built("HeadStatistics::add");
}
void head_squares(const Tensor&, const Tensor&) { throw_not_built("head_weight_tables"); }
void take_maximum(const Tensor&, const Tensor&) { throw_not_built("take_maximum"); }
void count_clipped(const Tensor&, float, const Tensor&) { throw_not_built("count_clipped"); }
void group_maximum(const Tensor&, const Tensor&) { throw_not_built("group_maximum"); }
void clip_heads(const Tensor&, float, float, const Tensor&, const Tensor&) {
    throw_not_built("clip_heads");
}
void advance_anneal(float, bool, const Tensor&, const Tensor&) {
    throw_not_built("advance_anneal");
}
void hold_gains(const GainLimits&, const float*, const float*, const Tensor&, const Tensor&) {
    throw_not_built("hold_gains");
}
void start_iteration(const SpectralWork&, bool) { throw_not_built("start_iteration"); }
void continue_iteration(const SpectralWork&) { throw_not_built("continue_iteration"); }
void finish_iteration(const SpectralWork&) { throw_not_built("finish_iteration"); }
void refresh_values(const SpectralWork&) { throw_not_built("refresh_values"); }
void inner_products(const SpectralWork&) { throw_not_built("inner_products"); }
void convert_gradients(const SpectralWork&) { throw_not_built("convert_gradients"); }
void refresh_weights(const UnitWork&, bool) { throw_not_built("refresh_weights"); }
void convert_gradients(const UnitWork&) { throw_not_built("convert_gradients"); }
void normalized_update_forward(
    const Tensor&, const Tensor&, const Tensor&, float, const Tensor&, const Tensor&) {
    throw_not_built("normalized_update_forward");
}
void normalized_update_backward(const Tensor&,
                                const Tensor&,
                                const Tensor&,
                                const Tensor&,
                                float,
                                const Tensor&,
                                const Tensor&,
                                const Tensor&,
                                const Tensor&) {
    throw_not_built("normalized_update_backward");
}
bool all_finite(const Tensor&) { throw_not_built("all_finite"); }

}  // namespace evenkeel::cuda
