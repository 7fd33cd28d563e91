// Threads and the order of summation; the arithmetic is in qk_norm_rope_rows.cpp. Bytes moved: x and y once
// each forward, dy, x and dx backward; angles and gains stay in cache.
#include "attention/cpu/qk_norm_rope.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "attention/cpu/qk_norm_rope_rows.h"
#include "framework/cores.h"

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

std::int64_t& cached_result() {
    static std::int64_t bytes = [] {
        constexpr std::int64_t kUnknown = 32 << 20;
        const std::int64_t share = cache_share();
        return share > 0 ? share : kUnknown;
    }();
    return bytes;
}

// Rows of whole cache lines only.
bool goes_past_caches(const Tensor& y) {
    constexpr std::uintptr_t kLine = 64;
    const auto size = static_cast<std::int64_t>(size_of(y.dtype()));
    const auto begins_lines = [&](std::int64_t elements) {
        return static_cast<std::uintptr_t>(elements * size) % kLine == 0;
    };
    return y.numel() * size / omp_get_max_threads() > cached_result() &&
           reinterpret_cast<std::uintptr_t>(y.raw()) % kLine == 0 && begins_lines(y.stride(0)) &&
           begins_lines(y.stride(1)) && begins_lines(y.stride(2)) && begins_lines(y.size(3));
}

QkNormRopeRows common_rows(const Tensor& x,
                           const Tensor& rstd,
                           const Tensor& gain,
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
    rows.norm = options.norm != QkNormKind::kNone;
    rows.centred = options.norm == QkNormKind::kLayerNorm;
    rows.token_statistic = options.token_statistic;
    rows.inverse_divisor =
        options.norm == QkNormKind::kL2 ? 1.0f : 1.0f / static_cast<float>(rows.dim);
    rows.eps = static_cast<float>(options.eps);
    rows.x = rows_of(x);
    if (rows.norm) rows.rstd = rstd.data<float>();
    if (gain.defined() && gain.rank() == 2) rows.gain_head = rows.dim;
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

// The channel that stands at each of D places.
std::vector<std::int32_t> channel_order(const QkNormRopeRows& rows) {
    std::vector<std::int32_t> channels(static_cast<std::size_t>(rows.dim));
    EVENKEEL_FOR_CURRENT_ISA(qk_norm_rope_channel_order)(rows, channels.data());
    return channels;
}

// gain + offset, or all ones; [N, D] or [D], in the order of channels. (A tensor is aligned for vectors.)
Tensor effective_gain(const Tensor& gain,
                      double offset,
                      const std::vector<std::int32_t>& channels) {
    const auto dim = static_cast<std::int64_t>(channels.size());
    if (!gain.defined()) return Tensor::full({dim}, 1.0f, DType::kFloat32);
    const Tensor result = Tensor::uninitialized(gain.shape(), DType::kFloat32);
    const float* from = gain.data<float>();
    float* to = result.data<float>();
    for (std::int64_t i = 0; i < gain.numel(); ++i) {
        to[i] = static_cast<float>(from[i - i % dim + channels[i % dim]] + offset);
    }
    return result;
}

// rstd^lambda for each row, or undefined without lambda. The rows' code fills it in.
Tensor make_factors(const Tensor& rstd, const QkNormRopeOptions& options, QkNormRopeRows& rows) {
    if (!options.lambda.defined()) return {};
    rows.lambda = *options.lambda.data<float>();
    const Tensor factors = Tensor::uninitialized(rstd.shape(), DType::kFloat32);
    rows.factor = factors.data<float>();
    return factors;
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

// dgain [N, D] or [D] += partial [chunks, N, D], in order of chunks and heads.
void add_gain_gradient(const Tensor& partial,
                       const std::vector<std::int32_t>& channels,
                       const Tensor& dgain) {
    const auto dim = static_cast<std::int64_t>(channels.size());
    const std::int64_t chunks = partial.size(0), heads = partial.size(1);
    const std::int64_t width = heads * dim;
    std::vector<double> totals(static_cast<std::size_t>(width));
#pragma omp parallel for schedule(static) if (chunks * width >= kParallelElements)
    for (std::int64_t n = 0; n < heads; ++n) {
        double* total = totals.data() + n * dim;
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
            const float* part = partial.data<float>() + chunk * width + n * dim;
            for (std::int64_t i = 0; i < dim; ++i) total[i] += part[i];
        }
    }
    if (dgain.rank() == 1) {
        for (std::int64_t i = dim; i < width; ++i) totals[i % dim] += totals[i];
    }
    float* sum = dgain.data<float>();
    for (std::int64_t i = 0; i < dgain.numel(); ++i) {
        float& value = sum[i - i % dim + channels[i % dim]];
        value = static_cast<float>(value + totals[i]);
    }
}

}  // namespace

std::int64_t largest_cached_result() { return cached_result(); }
void set_largest_cached_result(std::int64_t bytes) { cached_result() = bytes; }

void qk_norm_rope_forward(const Tensor& x,
                          const Tensor& gain,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options,
                          const Tensor& y,
                          const Tensor& rstd) {
    QkNormRopeRows rows = common_rows(x, rstd, gain, rope, positions, options);
    const Tensor effective = effective_gain(gain, options.gain_offset, channel_order(rows));
    rows.gain = effective.data<float>();
    rows.y = rows_of(y);
    rows.past_caches = goes_past_caches(y);
    const Tensor factors = make_factors(rstd, options, rows);
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
                           const Tensor& dgain,
                           const Tensor& mean) {
    QkNormRopeRows rows = common_rows(x, rstd, gain, rope, positions, options);
    if (rows.token_statistic) rows.mean = mean.data<float>();
    const std::vector<std::int32_t> channels = channel_order(rows);
    const Tensor effective = effective_gain(gain, options.gain_offset, channels);
    rows.gain = effective.data<float>();
    rows.y = rows_of(dx);
    rows.past_caches = goes_past_caches(dx);
    rows.dy = rows_of(dy);
    const Tensor factors = make_factors(rstd, options, rows);
    const auto backward_rows = EVENKEEL_FOR_CURRENT_ISA(qk_norm_rope_backward_rows);

    const std::int64_t width = x.size(2) * x.size(3);
    const std::int64_t chunks = (x.size(0) * x.size(1) + kChunkTokens - 1) / kChunkTokens;
    const bool with_gain = dgain.defined();
    const Tensor partial =
        with_gain ? Tensor::zeros({chunks, x.size(2), x.size(3)}, DType::kFloat32) : Tensor();
    for_each_chunk(x, [&](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
        backward_rows(rows, begin, end,
                      with_gain ? partial.data<float>() + chunk * width : nullptr);
    });
    if (with_gain) add_gain_gradient(partial, channels, dgain);
}

}  // namespace evenkeel::cpu
