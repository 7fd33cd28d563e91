#include "tests/attention/qk_norm_rope_reference.h"

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel::testing {
namespace {

// y = R_position v, or R_position^T v for direction -1.
template <typename Real>
void rotate(const NormRopeCase& c,
            const std::vector<double>& frequencies,
            std::int64_t position,
            int direction,
            Real* v) {
    const double magnitude = rope_magnitude(c.rope);
    const std::size_t pairs = frequencies.size();
    for (std::size_t p = 0; p < pairs; ++p) {
        const double angle = static_cast<double>(position) * frequencies[p];
        const Real cos = static_cast<Real>(magnitude * std::cos(angle));
        const Real sin = static_cast<Real>(magnitude * direction * std::sin(angle));
        const bool interleaved = c.rope.layout == RopeLayout::kInterleaved;
        Real& a = v[interleaved ? 2 * p : p];
        Real& b = v[interleaved ? 2 * p + 1 : p + pairs];
        const Real old_a = a;
        a = a * cos - b * sin;
        b = b * cos + old_a * sin;
    }
}

template <typename Real>
Real reciprocal_rms(const NormRopeCase& c, const Real* x) {
    Real sum = 0;
    for (std::int64_t i = 0; i < c.dim; ++i) sum += x[i] * x[i];
    const Real root = std::sqrt(sum / static_cast<Real>(c.dim) + static_cast<Real>(c.eps));
    return root == 0 ? Real(0) : Real(1) / root;
}

template <typename F>
void for_each_row(const NormRopeCase& c, F&& f) {
    for (std::int64_t row = 0; row < c.batch * c.tokens * c.heads; ++row) {
        const std::int64_t token = row / c.heads;
        f(row, row % c.heads,
          c.positions.empty() ? token % c.tokens : c.positions[static_cast<std::size_t>(token)]);
    }
}

}  // namespace

template <typename Real>
std::vector<Real> norm_rope(const NormRopeCase& c, const std::vector<Real>& x) {
    const std::vector<double> frequencies = rope_frequencies(c.rope, c.dim);
    std::vector<Real> y = x;
    for_each_row(c, [&](std::int64_t row, std::int64_t head, std::int64_t position) {
        Real* v = y.data() + row * c.dim;
        if (c.norm) {
            const Real rstd = reciprocal_rms(c, v);
            for (std::int64_t i = 0; i < c.dim; ++i) {
                const double g = c.gain.empty() ? 1.0 : c.gain[head * c.dim + i];
                v[i] = v[i] * rstd * static_cast<Real>(g);
            }
        }
        rotate(c, frequencies, position, 1, v);
    });
    return y;
}

template <typename Real>
NormRopeGradients norm_rope_gradients(const NormRopeCase& c,
                                      const std::vector<Real>& dy,
                                      const std::vector<Real>& x) {
    const std::vector<double> frequencies = rope_frequencies(c.rope, c.dim);
    std::vector<Real> dx = dy, dgain(static_cast<std::size_t>(c.heads * c.dim), Real(0));
    for_each_row(c, [&](std::int64_t row, std::int64_t head, std::int64_t position) {
        Real* z = dx.data() + row * c.dim;
        rotate(c, frequencies, position, -1, z);
        if (!c.norm) return;
        const Real* v = x.data() + row * c.dim;
        const Real rstd = reciprocal_rms(c, v);
        Real mean = 0;
        for (std::int64_t i = 0; i < c.dim; ++i) {
            const double g = c.gain.empty() ? 1.0 : c.gain[head * c.dim + i];
            dgain[head * c.dim + i] += z[i] * v[i] * rstd;
            z[i] *= static_cast<Real>(g);
            mean += z[i] * v[i] * rstd;
        }
        mean /= static_cast<Real>(c.dim);
        for (std::int64_t i = 0; i < c.dim; ++i) z[i] = rstd * (z[i] - v[i] * rstd * mean);
    });
    return {{dx.begin(), dx.end()}, {dgain.begin(), dgain.end()}};
}

template std::vector<double> norm_rope(const NormRopeCase&, const std::vector<double>&);
template std::vector<float> norm_rope(const NormRopeCase&, const std::vector<float>&);
template NormRopeGradients norm_rope_gradients(const NormRopeCase&,
                                               const std::vector<double>&,
                                               const std::vector<double>&);
template NormRopeGradients norm_rope_gradients(const NormRopeCase&,
                                               const std::vector<float>&,
                                               const std::vector<float>&);

std::vector<float> to_floats(const Tensor& tensor) {
    const std::vector<double> values = to_doubles(tensor);
    return {values.begin(), values.end()};
}

Tensor packed_slice(const Shape& shape, DType dtype) {
    const std::int64_t width = shape[2] * shape[3];
    const Tensor packed = poisoned({shape[0], shape[1], width + 48}, dtype);
    return packed.slice(2, 16, 16 + width).view(shape);
}

}  // namespace evenkeel::testing
