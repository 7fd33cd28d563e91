// Threads and the order of summation; the arithmetic is in bias_rows.cpp.
#include <algorithm>
#include <vector>

#include "parallel/bias_backends.h"
#include "parallel/bias_rows.h"

namespace evenkeel::cpu {
namespace {

// Rows that are summed in fp32 before their sum is added in double: fixed, so that no sum depends on the
// number of threads.
constexpr std::int64_t kRun = 64;
// Below this many elements starting threads costs more than it saves.
constexpr std::int64_t kParallelElements = 1 << 15;

std::byte* row_of(const Tensor& rows, std::int64_t index) {
    return rows.raw() + index * rows.stride(0) * static_cast<std::int64_t>(size_of(rows.dtype()));
}

}  // namespace

void add_bias(const Tensor& rows, const Tensor& bias) {
    const bool bf16 = rows.dtype() == DType::kBFloat16;
    const std::int64_t count = rows.size(0), width = rows.size(1);
    const auto add = EVENKEEL_FOR_CURRENT_ISA(add_bias_row);
#pragma omp parallel for schedule(static) if (rows.numel() >= kParallelElements)
    for (std::int64_t row = 0; row < count; ++row) {
        add(bf16, row_of(rows, row), bias.data<float>(), width);
    }
}

void add_bias_gradient(const Tensor& rows, const Tensor& grad) {
    const bool bf16 = rows.dtype() == DType::kBFloat16;
    const std::int64_t count = rows.size(0), width = rows.size(1);
    const std::int64_t runs = (count + kRun - 1) / kRun;
    std::vector<float> partial(static_cast<std::size_t>(runs * width));
    const auto add = EVENKEEL_FOR_CURRENT_ISA(add_row_to);
#pragma omp parallel for schedule(static) if (rows.numel() >= kParallelElements)
    for (std::int64_t run = 0; run < runs; ++run) {
        const std::int64_t end = std::min(count, (run + 1) * kRun);
        for (std::int64_t row = run * kRun; row < end; ++row) {
            add(bf16, row_of(rows, row), partial.data() + run * width, width);
        }
    }
    float* const sums = grad.data<float>();
#pragma omp parallel for schedule(static) if (runs * width >= kParallelElements)
    for (std::int64_t c = 0; c < width; ++c) {
        double sum = sums[c];
        for (std::int64_t run = 0; run < runs; ++run) {
            sum += partial[static_cast<std::size_t>(run * width + c)];
        }
        sums[c] = static_cast<float>(sum);
    }
}

}  // namespace evenkeel::cpu
