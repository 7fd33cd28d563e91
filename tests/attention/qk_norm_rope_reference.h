// QK-norm and RoPE in double, and the same formula written plainly in float: what the fast path is
// compared with.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/qk_norm_rope.h"

namespace evenkeel::testing {

// All tensors row-major [B, T, N, D], flattened.
struct NormRopeCase {
    std::int64_t batch = 1, tokens = 1, heads = 1, dim = 64;
    RopeConfig rope;
    std::vector<std::int64_t> positions;  // [B * T]; empty: token t stands at t
    std::vector<double> gain;             // [N, D], offset added; empty: ones
    QkNormKind norm = QkNormKind::kRms;
    double eps = 1e-6;
    double lambda = 1.0;  // the power of 1 / root
};

template <typename Real>
std::vector<Real> norm_rope(const NormRopeCase& c, const std::vector<Real>& x);

struct NormRopeGradients {
    std::vector<double> dx, dgain;  // dgain [N, D]
};
template <typename Real>
NormRopeGradients norm_rope_gradients(const NormRopeCase& c,
                                      const std::vector<Real>& dy,
                                      const std::vector<Real>& x);

// ---- Tensors for it

std::vector<float> to_floats(const Tensor& tensor);

// On the CPU, rounded once.
template <typename Real>
Tensor tensor_of(const std::vector<Real>& values, const Shape& shape, DType dtype) {
    const Tensor tensor = Tensor::uninitialized(shape, DType::kFloat32);
    float* data = tensor.data<float>();
    for (std::size_t i = 0; i < values.size(); ++i) data[i] = static_cast<float>(values[i]);
    return tensor.to(dtype);
}

// A [B, T, N, D] slice, filled with NaN, of a wider packed tensor.
Tensor packed_slice(const Shape& shape, DType dtype);

}  // namespace evenkeel::testing
