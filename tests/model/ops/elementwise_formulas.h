// What the tests of element-wise operations share: tensors from numbers and back, finite differences,
// and the formulas.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <utility>
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

// The same formulas in double (the reference) and in float (the plain implementation).
template <typename Real>
struct Formulas {
    using Values = std::vector<Real>;

    static Real rstd(const Real* x, std::int64_t width, double eps) {
        Real sum = 0;
        for (std::int64_t c = 0; c < width; ++c) sum += x[c] * x[c];
        return 1 / std::sqrt(sum / static_cast<Real>(width) + static_cast<Real>(eps));
    }
    static Values rms_norm(const Values& x, const Values& gain, double eps) {
        const auto width = static_cast<std::int64_t>(gain.size());
        Values y = x;
        for (std::size_t i = 0; i < x.size(); i += gain.size()) {
            const Real r = rstd(&x[i], width, eps);
            for (std::size_t c = 0; c < gain.size(); ++c) y[i + c] *= r * gain[c];
        }
        return y;
    }
    // dx, then dgain.
    static std::pair<Values, Values> rms_norm_gradients(const Values& dy,
                                                        const Values& x,
                                                        const Values& gain,
                                                        double eps) {
        const std::size_t width = gain.size();
        Values dx(x.size()), dgain(width, Real(0));
        for (std::size_t i = 0; i < x.size(); i += width) {
            const Real r = rstd(&x[i], static_cast<std::int64_t>(width), eps);
            Real mean = 0;
            for (std::size_t c = 0; c < width; ++c) {
                dgain[c] += dy[i + c] * x[i + c] * r;
                mean += gain[c] * dy[i + c] * x[i + c] * r;
            }
            mean /= static_cast<Real>(width);
            for (std::size_t c = 0; c < width; ++c) {
                dx[i + c] = r * (gain[c] * dy[i + c] - x[i + c] * r * mean);
            }
        }
        return {dx, dgain};
    }
    static Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }
    static Real gate(bool gelu, Real g) { return gelu ? tanh_gelu(g) : g * sigmoid(g); }
    static Real gate_slope(bool gelu, Real g) {
        const Real s = sigmoid(g);
        return gelu ? tanh_gelu_slope(g) : s * (1 + g * (1 - s));
    }
    static Real tanh_of(Real x) {
        return std::tanh(std::sqrt(2 / std::numbers::pi_v<Real>) *
                         (x + Real(0.044715) * x * x * x));
    }
    static Real tanh_gelu(Real x) { return x / 2 * (1 + tanh_of(x)); }
    static Real tanh_gelu_slope(Real x) {
        const Real t = tanh_of(x);
        return (1 + t) / 2 + x / 2 * (1 - t * t) * std::sqrt(2 / std::numbers::pi_v<Real>) *
                                 (1 + 3 * Real(0.044715) * x * x);
    }
    static Values gated(bool gelu, const Values& gate_up, std::size_t width) {
        Values y;
        for (std::size_t i = 0; i < gate_up.size(); i += 2 * width) {
            for (std::size_t c = 0; c < width; ++c) {
                y.push_back(gate(gelu, gate_up[i + c]) * gate_up[i + width + c]);
            }
        }
        return y;
    }
    static Values gated_gradient(bool gelu,
                                 const Values& dy,
                                 const Values& gate_up,
                                 std::size_t width) {
        Values d(gate_up.size());
        for (std::size_t row = 0; row < dy.size() / width; ++row) {
            for (std::size_t c = 0; c < width; ++c) {
                const std::size_t i = row * 2 * width + c;
                const Real g = gate_up[i];
                d[i] = dy[row * width + c] * gate_up[i + width] * gate_slope(gelu, g);
                d[i + width] = dy[row * width + c] * gate(gelu, g);
            }
        }
        return d;
    }
    static Real phi(Real x) { return std::erfc(-x / std::numbers::sqrt2_v<Real>) / 2; }
    static Values gelu(const Values& x) {
        Values y;
        for (const Real value : x) y.push_back(value * phi(value));
        return y;
    }
    static Values gelu_gradient(const Values& dy, const Values& x) {
        Values d;
        for (std::size_t i = 0; i < x.size(); ++i) {
            const Real density = std::exp(-x[i] * x[i] / 2) * std::numbers::inv_sqrtpi_v<Real> /
                                 std::numbers::sqrt2_v<Real>;
            d.push_back(dy[i] * (phi(x[i]) + x[i] * density));
        }
        return d;
    }
};

}  // namespace evenkeel::testing
