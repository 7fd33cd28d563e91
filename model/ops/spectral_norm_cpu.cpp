// Sums run over a fixed number of accumulators, or row by row: the same bits for any number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "framework/convert.h"
#include "model/ops/spectral_norm_backends.h"

namespace evenkeel::cpu {
namespace {

constexpr std::int64_t kColumns = 64;  // of a thread's block of W^T u

template <typename A, typename B>
double dot(const A* a, const B* b, std::int64_t count) {
    constexpr int kSums = 8;
    double sums[kSums] = {};
    std::int64_t i = 0;
    for (; i + kSums <= count; i += kSums) {
        for (int s = 0; s < kSums; ++s) {
            sums[s] += static_cast<double>(a[i + s]) * static_cast<double>(b[i + s]);
        }
    }
    for (int s = 0; i < count; ++i, ++s) {
        sums[s] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    double total = 0.0;
    for (const double sum : sums) total += sum;
    return total;
}

// Scales a vector to unit length and returns what length it had. `slot` holds its square where the vector
// is cut over ranks.
double normalize(double* vector, std::int64_t count, bool cut, double slot) {
    const double length = std::sqrt(cut ? slot : dot(vector, vector, count));
    for (std::int64_t i = 0; i < count; ++i) vector[i] /= length;
    return length;
}

void multiply_transposed(const SpectralMatrix& m, double* v) {
    const std::int64_t blocks = (m.columns + kColumns - 1) / kColumns;
#pragma omp parallel for schedule(static)
    for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t begin = block * kColumns, end = std::min(begin + kColumns, m.columns);
        for (std::int64_t c = begin; c < end; ++c) v[c] = 0.0;
        if (m.owned == 0) continue;
        for (std::int64_t r = 0; r < m.rows; ++r) {
            const float* row = m.weight + r * m.columns;
            const double u = m.start[r];
            for (std::int64_t c = begin; c < end; ++c) v[c] += u * static_cast<double>(row[c]);
        }
    }
}

}  // namespace

void start_iteration(const SpectralWork& work, bool advance) {
    double *left = work.left().data<double>(), *right = work.right().data<double>();
    for (std::int64_t i = 0; i < work.size(); ++i) {
        const SpectralMatrix& m = work.matrices()[static_cast<std::size_t>(i)];
        if (advance) {
            for (std::int64_t r = 0; r < m.rows; ++r) {
                m.start[r] = static_cast<float>(left[m.left + r]);
            }
        }
        double* v = right + m.right;
        multiply_transposed(m, v);
        right[i] = m.rows_cut != 0 ? 0.0 : dot(v, v, m.columns);
    }
}

void continue_iteration(const SpectralWork& work) {
    double *left = work.left().data<double>(), *right = work.right().data<double>();
    for (std::int64_t i = 0; i < work.size(); ++i) {
        const SpectralMatrix& m = work.matrices()[static_cast<std::size_t>(i)];
        double *u = left + m.left, *v = right + m.right;
        normalize(v, m.columns, m.rows_cut == 0, right[i]);
#pragma omp parallel for schedule(static)
        for (std::int64_t r = 0; r < m.rows; ++r) {
            u[r] = dot(m.weight + r * m.columns, v, m.columns);
        }
        left[i] = m.rows_cut != 0 && m.owned != 0 ? dot(u, u, m.rows) : 0.0;
    }
}

void finish_iteration(const SpectralWork& work) {
    double* left = work.left().data<double>();
    for (std::int64_t i = 0; i < work.size(); ++i) {
        const SpectralMatrix& m = work.matrices()[static_cast<std::size_t>(i)];
        *m.sigma = static_cast<float>(normalize(left + m.left, m.rows, m.rows_cut != 0, left[i]));
    }
}

void refresh_values(const SpectralWork& work) {
    for (const SpectralMatrix& m : work.matrices()) {
        const float factor = *m.gamma / *m.sigma;
#pragma omp parallel for schedule(static)
        for (std::int64_t r = 0; r < m.rows; ++r) {
            const float* weight = m.weight + r * m.columns;
            if (work.type() == DType::kFloat32) {
                float* value = static_cast<float*>(m.value) + r * m.columns;
                for (std::int64_t c = 0; c < m.columns; ++c) value[c] = factor * weight[c];
            } else {
                bfloat16* value = static_cast<bfloat16*>(m.value) + r * m.columns;
                std::vector<float> scaled(static_cast<std::size_t>(m.columns));
                for (std::int64_t c = 0; c < m.columns; ++c) {
                    scaled[static_cast<std::size_t>(c)] = factor * weight[c];
                }
                narrow(scaled.data(), value, m.columns);
            }
        }
    }
}

void inner_products(const SpectralWork& work) {
    double* inner = work.inner().data<double>();
    for (std::int64_t i = 0; i < work.size(); ++i) {
        const SpectralMatrix& m = work.matrices()[static_cast<std::size_t>(i)];
        inner[i] = 0.0;
        if (m.owned == 0) continue;
        std::vector<double> of_row(static_cast<std::size_t>(m.rows));
#pragma omp parallel for schedule(static)
        for (std::int64_t r = 0; r < m.rows; ++r) {
            of_row[static_cast<std::size_t>(r)] =
                dot(m.gradient + r * m.columns, m.weight + r * m.columns, m.columns);
        }
        for (const double sum : of_row) inner[i] += sum;
    }
}

void convert_gradients(const SpectralWork& work) {
    const double *left = work.left().data<double>(), *right = work.right().data<double>();
    for (std::int64_t i = 0; i < work.size(); ++i) {
        const SpectralMatrix& m = work.matrices()[static_cast<std::size_t>(i)];
        const double dgamma = work.inner().data<double>()[i] / static_cast<double>(*m.sigma);
        const double factor = static_cast<double>(*m.gamma) / static_cast<double>(*m.sigma);
        const double *u = left + m.left, *v = right + m.right;
        *m.gamma_gradient = static_cast<float>(dgamma);
#pragma omp parallel for schedule(static)
        for (std::int64_t r = 0; r < m.rows; ++r) {
            float* gradient = m.gradient + r * m.columns;
            const double along = dgamma * u[r];
            for (std::int64_t c = 0; c < m.columns; ++c) {
                gradient[c] =
                    static_cast<float>(factor * (static_cast<double>(gradient[c]) - along * v[c]));
            }
        }
    }
}

}  // namespace evenkeel::cpu
