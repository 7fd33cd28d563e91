// Threads and the order of summation; the arithmetic is in qk_norm_rope_rows.cpp. Bytes moved: x and y once
// each forward, dy, x and dx backward; angles and gains stay in cache.
#include "attention/qk_norm_rope_cpu.h"

#include <algorithm>
#include <vector>

#include "attention/qk_norm_rope_rows.h"

namespace evenkeel::cpu {
namespace {

// The unit of work of a thread. Backward sums gain gradients in fp32 within a chunk and in double over
// chunks, in order, so that no sum depends on the number of threads.
constexpr std::int64_t kChunkTokens = 64;
// Below this many elements starting threads costs more than it saves.
constexpr std::int64_t kParallelElements = 1 << 14;

HeadRows rows_of(const Tensor& tensor) {
    return {tensor.raw(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// gain + offset, or all ones; [N, D] or [D].
std::vector<float> effective_gain(const Tensor& gain, double offset, std::int64_t dim) {
    if (!gain.defined()) return std::vector<float>(static_cast<std::size_t>(dim), 1.0f);
    const float* values = gain.data<float>();
    std::vector<float> result(values, values + gain.numel());
    if (offset != 0.0) {
        for (float& value : result) value = static_cast<float>(value + offset);
    }
    return result;
}

QkNormRopeRows common_rows(const Tensor& x,
                           const Tensor& rstd,
                           const std::vector<float>& gain,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options) {
    QkNormRopeRows rows;
    rows.bf16 = x.dtype() == DType::kBFloat16;
    rows.tokens = x.size(1);
    rows.heads = x.size(2);
    rows.dim = static_cast<int>(x.size(3));
    rows.rotary_dim = static_cast<int>(rope.rotary_dim);
    rows.interleaved = rope.layout == RopeLayout::kInterleaved;
    rows.norm = options.norm;
    rows.eps = static_cast<float>(options.eps);
    rows.x = rows_of(x);
    if (options.norm) rows.rstd = rstd.data<float>();
    rows.gain = gain.data();
    rows.gain_head = static_cast<std::int64_t>(gain.size()) == rows.heads * rows.dim ? rows.dim : 0;
    if (rope.rotary_dim > 0) {
        rows.cos = rope.cos.data<float>();
        rows.sin = rope.sin.data<float>();
    }
    if (positions.defined()) {
        rows.positions = positions.data<std::int32_t>();
        rows.positions_batch = positions.stride(0);
        rows.positions_token = positions.stride(1);
        rows.first = rope.first;
    }
    return rows;
}

// Calls f(chunk, first token, last token + 1) for chunks of tokens, on all threads.
template <typename F>
void for_each_chunk(const Tensor& x, F&& f) {
    const std::int64_t tokens = x.size(0) * x.size(1);
    const std::int64_t chunks = (tokens + kChunkTokens - 1) / kChunkTokens;
#pragma omp parallel for schedule(static) if (x.numel() >= kParallelElements)
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        f(chunk, chunk * kChunkTokens, std::min(tokens, (chunk + 1) * kChunkTokens));
    }
}

// dgain [N, D] or [D] += partial [chunks, N, D], in order.
void add_gain_gradient(const std::vector<float>& partial,
                       std::int64_t chunks,
                       std::int64_t heads,
                       std::int64_t dim,
                       const Tensor& dgain) {
    const bool shared = dgain.rank() == 1;
    float* sum = dgain.data<float>();
    const std::int64_t width = heads * dim;
    const std::int64_t outputs = shared ? dim : width;
#pragma omp parallel for schedule(static) if (chunks * width >= kParallelElements)
    for (std::int64_t c = 0; c < outputs; ++c) {
        double total = 0.0;
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
            for (std::int64_t i = c; i < width; i += outputs) total += partial[chunk * width + i];
        }
        sum[c] = static_cast<float>(sum[c] + total);
    }
}

}  // namespace

void qk_norm_rope_forward(const Tensor& x,
                          const Tensor& gain,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options,
                          const Tensor& y,
                          const Tensor& rstd) {
    const std::vector<float> effective = effective_gain(gain, options.gain_offset, x.size(3));
    QkNormRopeRows rows = common_rows(x, rstd, effective, rope, positions, options);
    rows.y = rows_of(y);
    const auto forward_rows = EVENKEEL_FOR_CURRENT_ISA(qk_norm_rope_forward_rows);
    for_each_chunk(x, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
        forward_rows(rows, begin, end);
    });
}

void qk_norm_rope_backward(const Tensor& dy,
                           const Tensor& x,
                           const Tensor& gain,
                           const Tensor& rstd,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options,
                           const Tensor& dx,
                           const Tensor& dgain) {
    const std::vector<float> effective = effective_gain(gain, options.gain_offset, dy.size(3));
    QkNormRopeRows rows = common_rows(x, rstd, effective, rope, positions, options);
    rows.y = rows_of(dx);
    rows.dy = rows_of(dy);
    const auto backward_rows = EVENKEEL_FOR_CURRENT_ISA(qk_norm_rope_backward_rows);

    const std::int64_t width = x.size(2) * x.size(3);
    const std::int64_t chunks = (x.size(0) * x.size(1) + kChunkTokens - 1) / kChunkTokens;
    const bool with_gain = dgain.defined();
    std::vector<float> partial(static_cast<std::size_t>(with_gain ? chunks * width : 0));
    for_each_chunk(x, [&](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
        backward_rows(rows, begin, end, with_gain ? partial.data() + chunk * width : nullptr);
    });
    if (with_gain) add_gain_gradient(partial, chunks, x.size(2), x.size(3), dgain);
}

}  // namespace evenkeel::cpu
