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

// u = (x - mean) rstd; what x - mean is multiplied with, rstd^lambda; what sums over a row are divided by.
template <typename Real>
struct Statistic {
    Real mean = 0, rstd = 0, factor = 0, divisor = 1;
};
template <typename Real>
Statistic<Real> statistic_of(const NormRopeCase& c, const Real* x) {
    Statistic<Real> s;
    if (c.norm != QkNormKind::kL2) s.divisor = static_cast<Real>(c.dim);
    if (c.norm == QkNormKind::kLayerNorm) {
        for (std::int64_t i = 0; i < c.dim; ++i) s.mean += x[i];
        s.mean /= s.divisor;
    }
    Real sum = 0;
    for (std::int64_t i = 0; i < c.dim; ++i) sum += (x[i] - s.mean) * (x[i] - s.mean);
    const Real root = std::sqrt(sum / s.divisor + static_cast<Real>(c.eps));
    s.rstd = root == 0 ? Real(0) : Real(1) / root;
    s.factor = std::pow(s.rstd, static_cast<Real>(c.lambda));
    return s;
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
        if (c.norm != QkNormKind::kNone) {
            const Statistic<Real> s = statistic_of(c, v);
            for (std::int64_t i = 0; i < c.dim; ++i) {
                const double g = c.gain.empty() ? 1.0 : c.gain[head * c.dim + i];
                v[i] = (v[i] - s.mean) * s.factor * static_cast<Real>(g);
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
        if (c.norm == QkNormKind::kNone) return;
        const Real* v = x.data() + row * c.dim;
        const Statistic<Real> s = statistic_of(c, v);
        Real mean = 0, radial = 0;  // of gain z, and of gain z u
        for (std::int64_t i = 0; i < c.dim; ++i) {
            const double g = c.gain.empty() ? 1.0 : c.gain[head * c.dim + i];
            const Real u = (v[i] - s.mean) * s.rstd;
            dgain[head * c.dim + i] += z[i] * (v[i] - s.mean) * s.factor;
            z[i] *= static_cast<Real>(g);
            mean += z[i];
            radial += z[i] * u;
        }
        mean = c.norm == QkNormKind::kLayerNorm ? mean / s.divisor : Real(0);
        radial *= static_cast<Real>(c.lambda) / s.divisor;
        for (std::int64_t i = 0; i < c.dim; ++i) {
            z[i] = s.factor * (z[i] - mean - (v[i] - s.mean) * s.rstd * radial);
        }
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
