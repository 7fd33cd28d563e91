#include <cmath>
#include <vector>

#include "framework/dtype.h"
#include "model/ops/unit_weights_backends.h"

namespace evenkeel::cpu {
namespace {

float reciprocal_root(double squares) {
    return squares > 0.0 ? static_cast<float>(1.0 / std::sqrt(squares)) : 0.0f;
}

// Of each column, row by row.
std::vector<float> column_scales(const UnitMatrix& m) {
    std::vector<double> squares(static_cast<std::size_t>(m.columns));
    for (std::int64_t r = 0; r < m.rows; ++r) {
        const float* row = m.weight + r * m.columns;
        for (std::int64_t c = 0; c < m.columns; ++c) {
            squares[static_cast<std::size_t>(c)] +=
                static_cast<double>(row[c]) * static_cast<double>(row[c]);
        }
    }
    std::vector<float> scales;
    for (const double sum : squares) scales.push_back(reciprocal_root(sum));
    return scales;
}

float row_scale(const float* row, std::int64_t columns) {
    double squares = 0.0;
    for (std::int64_t c = 0; c < columns; ++c) {
        squares += static_cast<double>(row[c]) * static_cast<double>(row[c]);
    }
    return reciprocal_root(squares);
}

void put_value(const UnitMatrix& m, DType type, std::int64_t r) {
    const float gain = m.gain != nullptr ? m.factor * m.gain[r] : 1.0f;
    const float* weight = m.weight + r * m.columns;
    if (type == DType::kFloat32) {
        float* value = static_cast<float*>(m.value) + r * m.columns;
        for (std::int64_t c = 0; c < m.columns; ++c) value[c] = gain * weight[c];
    } else {
        bfloat16* value = static_cast<bfloat16*>(m.value) + r * m.columns;
        for (std::int64_t c = 0; c < m.columns; ++c) value[c] = bfloat16(gain * weight[c]);
    }
}

}  // namespace

void refresh_weights(const UnitWork& work, bool normalize) {
    for (const UnitMatrix& m : work.matrices()) {
        std::vector<float> scales;
        if (normalize && m.unit_rows == 0) scales = column_scales(m);
#pragma omp parallel for schedule(static)
        for (std::int64_t r = 0; r < m.rows; ++r) {
            float* row = m.weight + r * m.columns;
            if (normalize && m.unit_rows != 0) {
                const float scale = row_scale(row, m.columns);
                for (std::int64_t c = 0; c < m.columns; ++c) row[c] *= scale;
            } else if (normalize) {
                for (std::int64_t c = 0; c < m.columns; ++c) {
                    row[c] *= scales[static_cast<std::size_t>(c)];
                }
            }
            if (m.value != nullptr) put_value(m, work.type(), r);
        }
    }
}

void convert_gradients(const UnitWork& work) {
    for (const UnitMatrix& m : work.matrices()) {
        if (m.gain == nullptr) continue;
#pragma omp parallel for schedule(static)
        for (std::int64_t r = 0; r < m.rows; ++r) {
            const float* weight = m.weight + r * m.columns;
            float* gradient = m.gradient + r * m.columns;
            const float gain = m.factor * m.gain[r];
            double inner = 0.0;
            for (std::int64_t c = 0; c < m.columns; ++c) {
                inner += static_cast<double>(gradient[c]) * static_cast<double>(weight[c]);
                gradient[c] *= gain;
            }
            m.gain_gradient[r] = static_cast<float>(static_cast<double>(m.factor) * inner);
        }
    }
}

}  // namespace evenkeel::cpu
