// Threads and the order of summation; the arithmetic is in elementwise_rows.cpp.
#include "model/ops/elementwise_cpu.h"

#include <algorithm>
#include <vector>

#include "model/ops/elementwise_rows.h"

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

NormRows norm_rows(const Tensor& x, const Tensor& gain, double gain_offset, const Tensor& y) {
    NormRows rows;
    rows.bf16 = is_bf16(x);
    rows.width = x.size(-1);
    rows.x = x.raw();
    rows.gain = gain.data<float>();
    rows.gain_offset = static_cast<float>(gain_offset);
    rows.y = y.raw();
    return rows;
}

// What rows begin .. end-1 have added up to, one set of `width` numbers for each kGainRows of them.
class PartialSums {
  public:
    PartialSums(std::int64_t rows, std::int64_t width)
        : chunks_((rows + kGainRows - 1) / kGainRows),
          width_(width),
          sums_(static_cast<std::size_t>(chunks_ * width)) {}

    float* of(std::int64_t begin) { return sums_.data() + begin / kGainRows * width_; }

    // In double, in order.
    void add_to(const Tensor& total) const {
        float* sums = total.data<float>();
        for_each_block(width_, 256, chunks_, [&](std::int64_t begin, std::int64_t end) {
            std::vector<double> totals(static_cast<std::size_t>(end - begin));
            for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
                const float* part = sums_.data() + chunk * width_ + begin;
                for (std::size_t c = 0; c < totals.size(); ++c) totals[c] += part[c];
            }
            for (std::int64_t c = begin; c < end; ++c) {
                sums[c] = static_cast<float>(sums[c] + totals[static_cast<std::size_t>(c - begin)]);
            }
        });
    }

  private:
    std::int64_t chunks_, width_;
    std::vector<float> sums_;
};

void gated_forward(bool gelu, const Tensor& gate_up, const Tensor& y) {
    const std::int64_t width = y.size(-1);
    const auto forward_rows = EVENKEEL_FOR_CURRENT_ISA(gated_forward_rows);
    for_each_block(y.numel() / width, rows_per_block(width), width,
                   [&](std::int64_t begin, std::int64_t end) {
                       forward_rows(is_bf16(y), gelu, gate_up.raw(), y.raw(), width, begin, end);
                   });
}

void gated_backward(bool gelu, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    const std::int64_t width = dy.size(-1);
    const auto backward_rows = EVENKEEL_FOR_CURRENT_ISA(gated_backward_rows);
    for_each_block(dy.numel() / width, rows_per_block(width), width,
                   [&](std::int64_t begin, std::int64_t end) {
                       backward_rows(is_bf16(dy), gelu, dy.raw(), gate_up.raw(), dgate_up.raw(),
                                     width, begin, end);
                   });
}

}  // namespace

void rms_norm_forward(const Tensor& x,
                      const Tensor& gain,
                      double eps,
                      const Tensor& y,
                      const Tensor& rstd,
                      double gain_offset) {
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    NormRows rows = norm_rows(x, gain_fp32, gain_offset, y);
    rows.rstd = rstd.data<float>();
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
                       const Tensor& dgain,
                       double gain_offset) {
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    NormRows rows = norm_rows(x, gain_fp32, gain_offset, dx);
    rows.rstd = rstd.data<float>();
    rows.dy = dy.raw();
    rows.accumulate = accumulate;
    PartialSums of_gain(rstd.numel(), rows.width);
    const auto backward_rows = EVENKEEL_FOR_CURRENT_ISA(rms_norm_backward_rows);
    for_each_block(rstd.numel(), kGainRows, rows.width, [&](std::int64_t begin, std::int64_t end) {
        backward_rows(rows, begin, end, of_gain.of(begin));
    });
    of_gain.add_to(dgain);
}

void layer_norm_forward(const Tensor& x,
                        const Tensor& gain,
                        const Tensor& bias,
                        double eps,
                        const Tensor& y,
                        const Tensor& statistics,
                        double gain_offset) {
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    const Tensor bias_fp32 = bias.defined() ? bias.to(DType::kFloat32) : Tensor();
    const std::int64_t count = statistics.size(1);
    NormRows rows = norm_rows(x, gain_fp32, gain_offset, y);
    rows.rstd = statistics.data<float>();
    rows.mean = rows.rstd + count;
    rows.eps = static_cast<float>(eps);
    if (bias.defined()) rows.bias = bias_fp32.data<float>();
    const auto forward_rows = EVENKEEL_FOR_CURRENT_ISA(layer_norm_forward_rows);
    for_each_block(count, rows_per_block(rows.width), rows.width,
                   [&](std::int64_t begin, std::int64_t end) { forward_rows(rows, begin, end); });
}

void layer_norm_backward(const Tensor& dy,
                         const Tensor& x,
                         const Tensor& gain,
                         const Tensor& statistics,
                         bool accumulate,
                         const Tensor& dx,
                         const Tensor& dgain,
                         const Tensor& dbias,
                         double gain_offset) {
    const Tensor gain_fp32 = gain.to(DType::kFloat32);
    const std::int64_t count = statistics.size(1);
    NormRows rows = norm_rows(x, gain_fp32, gain_offset, dx);
    rows.rstd = statistics.data<float>();
    rows.mean = rows.rstd + count;
    rows.dy = dy.raw();
    rows.accumulate = accumulate;
    PartialSums of_gain(count, rows.width), of_bias(count, rows.width);
    const auto backward_rows = EVENKEEL_FOR_CURRENT_ISA(layer_norm_backward_rows);
    for_each_block(count, kGainRows, rows.width, [&](std::int64_t begin, std::int64_t end) {
        backward_rows(rows, begin, end, of_gain.of(begin), of_bias.of(begin));
    });
    of_gain.add_to(dgain);
    if (dbias.defined()) of_bias.add_to(dbias);
}

void swiglu_forward(const Tensor& gate_up, const Tensor& y) { gated_forward(false, gate_up, y); }
void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    gated_backward(false, dy, gate_up, dgate_up);
}
void geglu_forward(const Tensor& gate_up, const Tensor& y) { gated_forward(true, gate_up, y); }
void geglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    gated_backward(true, dy, gate_up, dgate_up);
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

void scale_in_place(const Tensor& y, double factor) {
    const auto scale = EVENKEEL_FOR_CURRENT_ISA(scale_range);
    for_each_block(y.numel(), kBlockElements, 1, [&](std::int64_t begin, std::int64_t end) {
        scale(is_bf16(y), y.raw(), static_cast<float>(factor), begin, end);
    });
}

}  // namespace evenkeel::cpu
