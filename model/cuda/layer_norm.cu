#include "framework/error.h"
#include "model/cuda/elementwise.h"

namespace evenkeel::cuda {

void layer_norm_forward(
    const Tensor&, const Tensor&, const Tensor&, double, const Tensor&, const Tensor&, double) {
    throw_error(ErrorCode::kNotBuilt, "layer_norm_forward", "device: got cuda, want cpu");
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
    throw_error(ErrorCode::kNotBuilt, "layer_norm_backward", "device: got cuda, want cpu");
}

}  // namespace evenkeel::cuda
