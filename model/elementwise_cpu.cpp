// Threads and the order of summation; the arithmetic is in elementwise_rows.cpp.
#include "model/elementwise_cpu.h"

#include <algorithm>
#include <vector>

#include "model/elementwise_rows.h"

namespace evenkeel::cpu {
namespace {

// Rows whose gain gradients are summed in fp32 before they are added up in double, in order: fixed, so
// that no sum depends on the number of threads.
constexpr std::int64_t kGainRows = 64;
// The work of one call of an inner loop, in elements.
constexpr std::int64_t kBlockElements = 1 << 13;
// Below this many elements starting threads costs more than it saves.
constexpr std::int64_t kParallelElements = 1 << 15;

bool is_bf16(const Tensor& tensor) { return tensor.dtype() == DType::kBFloat16; }

// Calls f(first, last + 1) for blocks of `step` of `count` items, `width` elements each, on all threads.
template <typename F>
void for_each_block(std::int64_t count, std::int64_t step, std::int64_t width, F&& f) {
    const std::int64_t blocks = (count + step - 1) / step;
#pragma omp parallel for schedule(static) if (count * width >= kParallelElements)
    for (std::int64_t block = 0; block < blocks; ++block) {
        f(block * step, std::min(count, (block + 1) * step));
    }
}

std::int64_t rows_per_block(std::int64_t width) {
    return std::max<std::int64_t>(1, kBlockElements / width);
}

RmsNormRows norm_rows(const Tensor& x, const Tensor& gain, const Tensor& rstd, const Tensor& y) {
    RmsNormRows rows;
    rows.bf16 = is_bf16(x);
    rows.width = x.size(-1);
    rows.x = x.raw();
    rows.gain = gain.data<float>();
    rows.rstd = rstd.data<float>();
    rows.y = y.raw();
    return rows;
}

}  // namespace

void rms_norm_forward(
    const Tensor& x, const Tensor& gain, double eps, const Tensor& y, const Tensor& rstd) {
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    RmsNormRows rows = norm_rows(x, gain_fp32, rstd, y);
    rows.eps = static_cast<float>(eps);
    const auto forward_rows = EVENKEEL_FOR_CURRENT_ISA(rms_norm_forward_rows);
    for_each_block(rstd.numel(), rows_per_block(rows.width), rows.width,
                   [&](std::int64_t begin, std::int64_t end) { forward_rows(rows, begin, end); });
}

void rms_norm_backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& gain,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx,
                       const Tensor& dgain) {
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    RmsNormRows rows = norm_rows(x, gain_fp32, rstd, dx);
    rows.dy = dy.raw();
    rows.accumulate = accumulate;
    const std::int64_t chunks = (rstd.numel() + kGainRows - 1) / kGainRows;
    std::vector<float> partial(static_cast<std::size_t>(chunks * rows.width));
    const auto backward_rows = EVENKEEL_FOR_CURRENT_ISA(rms_norm_backward_rows);
    for_each_block(rstd.numel(), kGainRows, rows.width, [&](std::int64_t begin, std::int64_t end) {
        backward_rows(rows, begin, end, partial.data() + begin / kGainRows * rows.width);
    });

    float* sums = dgain.data<float>();
    for_each_block(rows.width, 256, chunks, [&](std::int64_t begin, std::int64_t end) {
        std::vector<double> totals(static_cast<std::size_t>(end - begin));
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
            const float* part = partial.data() + chunk * rows.width + begin;
            for (std::size_t c = 0; c < totals.size(); ++c) totals[c] += part[c];
        }
        for (std::int64_t c = begin; c < end; ++c) {
            sums[c] = static_cast<float>(sums[c] + totals[static_cast<std::size_t>(c - begin)]);
        }
    });
}

void swiglu_forward(const Tensor& gate_up, const Tensor& y) {
    const std::int64_t width = y.size(-1);
    const auto forward_rows = EVENKEEL_FOR_CURRENT_ISA(swiglu_forward_rows);
    for_each_block(y.numel() / width, rows_per_block(width), width,
                   [&](std::int64_t begin, std::int64_t end) {
                       forward_rows(is_bf16(y), gate_up.raw(), y.raw(), width, begin, end);
                   });
}

void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    const std::int64_t width = dy.size(-1);
    const auto backward_rows = EVENKEEL_FOR_CURRENT_ISA(swiglu_backward_rows);
    for_each_block(dy.numel() / width, rows_per_block(width), width,
                   [&](std::int64_t begin, std::int64_t end) {
                       backward_rows(is_bf16(dy), dy.raw(), gate_up.raw(), dgate_up.raw(), width,
                                     begin, end);
                   });
}

void gelu_forward(const Tensor& x, const Tensor& y) {
    const auto forward_range = EVENKEEL_FOR_CURRENT_ISA(gelu_forward_range);
    for_each_block(x.numel(), kBlockElements, 1, [&](std::int64_t begin, std::int64_t end) {
        forward_range(is_bf16(x), x.raw(), y.raw(), begin, end);
    });
}

void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
    const auto backward_range = EVENKEEL_FOR_CURRENT_ISA(gelu_backward_range);
    for_each_block(x.numel(), kBlockElements, 1, [&](std::int64_t begin, std::int64_t end) {
        backward_range(is_bf16(x), dy.raw(), x.raw(), dx.raw(), begin, end);
    });
}

void add_in_place(const Tensor& y, const Tensor& x) {
    const auto add = EVENKEEL_FOR_CURRENT_ISA(add_range);
    for_each_block(x.numel(), kBlockElements, 1, [&](std::int64_t begin, std::int64_t end) {
        add(is_bf16(x), y.raw(), x.raw(), begin, end);
    });
}

}  // namespace evenkeel::cpu
