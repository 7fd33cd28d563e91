// What the tests of element-wise operations share: tensors from numbers and back, and finite differences.
#pragma once

#include <functional>
#include <vector>

#include "framework/tensor.h"
#include "tests/support/compare.h"

namespace evenkeel::testing {

inline std::vector<float> to_floats(const Tensor& tensor) {
    const std::vector<double> values = to_doubles(tensor);
    return {values.begin(), values.end()};
}

inline Tensor tensor_of(const std::vector<float>& values, const Shape& shape, DType dtype) {
    const Tensor tensor = Tensor::uninitialized(shape, DType::kFloat32);
    for (std::size_t i = 0; i < values.size(); ++i) tensor.data<float>()[i] = values[i];
    return tensor.to(dtype);
}

// (f(x + h) - f(x - h)) / 2h of the sum of f's results weighted by dy, for element i of x.
inline double finite_difference(
    const std::function<std::vector<double>(const std::vector<double>&)>& f,
    const std::vector<double>& dy,
    std::vector<double> x,
    std::size_t i) {
    const double step = 1e-5, at = x[i];
    double side[2];
    for (int s = 0; s < 2; ++s) {
        x[i] = at + (s == 0 ? step : -step);
        const std::vector<double> y = f(x);
        side[s] = 0.0;
        for (std::size_t j = 0; j < y.size(); ++j) side[s] += y[j] * dy[j];
    }
    return (side[0] - side[1]) / (2.0 * step);
}

}  // namespace evenkeel::testing
