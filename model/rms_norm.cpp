#include "model/rms_norm.h"

#include "model/elementwise.h"

namespace evenkeel {

RmsNorm::RmsNorm(const ProcessGrid& grid, const std::string& name, std::int64_t width, double eps)
    : eps_(eps),
      gain_(declare_parameter(
          name, {width}, Sharding::replicated(grid.tp_rank(), grid.tp_size()), DType::kFloat32)) {
    gain_.weight_decay = false;
}

Tensor RmsNorm::forward(const Tensor& x, Tensor& rstd) const {
    const Tensor y = Tensor::uninitialized(x.shape(), x.dtype(), x.device());
    rstd = Tensor::uninitialized({x.size(0) * x.size(1)}, DType::kFloat32, x.device());
    rms_norm_forward(x, gain_.value, eps_, y, rstd);
    return y;
}

void RmsNorm::backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx) const {
    rms_norm_backward(dy, x, gain_.value, rstd, accumulate, dx, gain_.grad);
}

}  // namespace evenkeel
