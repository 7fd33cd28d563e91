// Threads and the order of summation; the arithmetic is in normalized_update_rows.cpp.
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/ops/normalized_update_backends.h"
#include "model/ops/normalized_update_rows.h"

namespace evenkeel::cpu {
namespace {

// Rows whose gradients of alpha are summed in fp32 before they are added up in double, in order: fixed, so that
// no sum depends on the number of threads.
constexpr std::int64_t kBlockRows = 64;

std::vector<float> rates(const Tensor& parameter, float factor) {
    std::vector<float> alpha(static_cast<std::size_t>(parameter.numel()));
    for (std::size_t c = 0; c < alpha.size(); ++c) {
        alpha[c] = std::abs(parameter.data<float>()[c]) * factor;
    }
    return alpha;
}

}  // namespace

void normalized_update_forward(const Tensor& h,
                               const Tensor& a,
                               const Tensor& parameter,
                               float factor,
                               const Tensor& y,
                               const Tensor& inverse) {
    const std::vector<float> alpha = rates(parameter, factor);
    NormalizedUpdateRows rows;
    rows.bf16 = h.dtype() == DType::kBFloat16;
    rows.width = h.size(-1);
    rows.h = h.raw(), rows.a = a.raw(), rows.y = y.raw();
    rows.alpha = alpha.data();
    rows.inverse = inverse.data<float>();
    const std::int64_t count = inverse.size(0), blocks = (count + kBlockRows - 1) / kBlockRows;
    const auto forward = EVENKEEL_FOR_CURRENT_ISA(normalized_update_forward_rows);
#pragma omp parallel for schedule(static)
    for (std::int64_t block = 0; block < blocks; ++block) {
        forward(rows, block * kBlockRows, std::min(count, (block + 1) * kBlockRows));
    }
}

void normalized_update_backward(const Tensor& dy,
                                const Tensor& h,
                                const Tensor& a,
                                const Tensor& parameter,
                                float factor,
                                const Tensor& inverse,
                                const Tensor& dh,
                                const Tensor& da,
                                const Tensor& dparameter) {
    const std::vector<float> alpha = rates(parameter, factor);
    NormalizedUpdateRows rows;
    rows.bf16 = h.dtype() == DType::kBFloat16;
    rows.width = h.size(-1);
    rows.h = h.raw(), rows.a = a.raw(), rows.dy = dy.raw();
    rows.dh = dh.raw(), rows.da = da.raw();
    rows.alpha = alpha.data();
    rows.inverse = inverse.data<float>();
    const std::int64_t count = inverse.size(0), blocks = (count + kBlockRows - 1) / kBlockRows;
    std::vector<float> partial(static_cast<std::size_t>(blocks * rows.width));
    const auto backward = EVENKEEL_FOR_CURRENT_ISA(normalized_update_backward_rows);
#pragma omp parallel for schedule(static)
    for (std::int64_t block = 0; block < blocks; ++block) {
        backward(rows, block * kBlockRows, std::min(count, (block + 1) * kBlockRows),
                 partial.data() + block * rows.width);
    }
    for (std::int64_t c = 0; c < rows.width; ++c) {
        double total = 0.0;
        for (std::int64_t block = 0; block < blocks; ++block) {
            total += partial[static_cast<std::size_t>(block * rows.width + c)];
        }
        const float sign = parameter.data<float>()[c] < 0.0f ? -1.0f : 1.0f;
        float& gradient = dparameter.data<float>()[c];
        gradient = static_cast<float>(gradient + static_cast<double>(sign * factor) * total);
    }
}

}  // namespace evenkeel::cpu
