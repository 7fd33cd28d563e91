#include <omp.h>

#include <cmath>
#include <cstring>

#include "framework/dispatch.h"
#include "parallel/vocab_backends.h"
#include "parallel/vocab_rows.h"

namespace evenkeel::cpu {
namespace {

bool is_bf16(const Tensor& tensor) { return tensor.dtype() == DType::kBFloat16; }

std::byte* row_of(const Tensor& rows, std::int64_t index) {
    return rows.raw() + index * rows.stride(0) * static_cast<std::int64_t>(size_of(rows.dtype()));
}

// Index of the target in this rank's row; -1 when it is elsewhere.
std::int64_t local(const LogitRows& rows, std::int32_t target) {
    const std::int64_t index = target - rows.vocab_begin;
    return target >= 0 && index >= 0 && index < rows.width() ? index : -1;
}

float element(const Tensor& rows, std::int64_t row, std::int64_t index) {
    const std::byte* at = row_of(rows, row);
    return is_bf16(rows) ? static_cast<float>(reinterpret_cast<const bfloat16*>(at)[index])
                         : reinterpret_cast<const float*>(at)[index];
}

}  // namespace

void embedding_forward(const Tensor& tokens,
                       const Tensor& weight,
                       std::int64_t begin,
                       const Tensor& y) {
    const std::size_t row_bytes = static_cast<std::size_t>(y.size(1)) * size_of(y.dtype());
    const std::int32_t* ids = tokens.data<std::int32_t>();
    const std::int64_t count = tokens.numel(), held = weight.size(0);
#pragma omp parallel for
    for (std::int64_t i = 0; i < count; ++i) {
        std::byte* to = y.raw() + static_cast<std::size_t>(i) * row_bytes;
        const std::int64_t row = ids[i] - begin;
        if (row >= 0 && row < held) {
            std::memcpy(to, weight.raw() + static_cast<std::size_t>(row) * row_bytes, row_bytes);
        } else {
            std::memset(to, 0, row_bytes);
        }
    }
}

void embedding_backward(const Tensor& dy,
                        const Tensor& tokens,
                        std::int64_t begin,
                        const Tensor& grad) {
    const std::int32_t* ids = tokens.data<std::int32_t>();
    float* sums = grad.data<float>();
    const std::int64_t count = tokens.numel(), width = dy.size(1), held = grad.size(0);
    dispatch_float(dy.dtype(), "embedding_backward", [&]<typename T>() {
        const T* rows = dy.data<T>();
#pragma omp parallel
        {
            // Threads share the columns, so that each row is summed in token order.
            const std::int64_t team = omp_get_num_threads(), thread = omp_get_thread_num();
            const std::int64_t first = width * thread / team, last = width * (thread + 1) / team;
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t row = ids[i] - begin;
                if (row < 0 || row >= held) continue;
                float* to = sums + row * width;
                const T* from = rows + i * width;
                for (std::int64_t c = first; c < last; ++c) to[c] += static_cast<float>(from[c]);
            }
        }
    });
}

void cross_entropy_maxima(const LogitRows& rows, const Tensor& maxima) {
    float* max = maxima.data<float>();
    const std::int64_t count = rows.count();
    const auto largest = EVENKEEL_FOR_CURRENT_ISA(row_max);
#pragma omp parallel for
    for (std::int64_t i = 0; i < count; ++i) {
        max[i] = largest(is_bf16(rows.logits), row_of(rows.logits, i), rows.width());
    }
}

void cross_entropy_sums(const LogitRows& rows, const Tensor& maxima, const Tensor& sums) {
    const std::int32_t* ids = rows.targets.data<std::int32_t>();
    const float* max = maxima.data<float>();
    const std::int64_t count = rows.count();
    float* sum_exp = sums.data<float>();
    float* target_logit = sum_exp + count;
    const auto sum_of_exponentials = EVENKEEL_FOR_CURRENT_ISA(row_sum_exp);
#pragma omp parallel for
    for (std::int64_t i = 0; i < count; ++i) {
        sum_exp[i] =
            sum_of_exponentials(is_bf16(rows.logits), row_of(rows.logits, i), max[i], rows.width());
        const std::int64_t target = local(rows, ids[i]);
        target_logit[i] = target >= 0 ? element(rows.logits, i, target) : 0.0f;
    }
}

void cross_entropy_finish(const LogitRows& rows,
                          const Tensor& maxima,
                          const Tensor& sums,
                          double weight,
                          const Tensor& log_sum_exp,
                          const Tensor& counted,
                          const Tensor& loss) {
    const std::int32_t* ids = rows.targets.data<std::int32_t>();
    const float* max = maxima.data<float>();
    const float* sum_exp = sums.data<float>();
    const float* target_logit = sum_exp + rows.count();
    float* results = log_sum_exp.data<float>();
    double sum = 0;
    std::int32_t tokens = 0;
    for (std::int64_t i = 0; i < rows.count(); ++i) {
        results[i] = max[i] + std::log(sum_exp[i]);
        if (ids[i] < 0) continue;
        ++tokens;
        sum += (static_cast<double>(max[i]) - target_logit[i]) +
               std::log(static_cast<double>(sum_exp[i]));
    }
    *counted.data<std::int32_t>() = tokens;
    if (tokens > 0) *loss.data<double>() += weight * (sum / tokens);
}

void cross_entropy_gradient(const LogitRows& rows,
                            const Tensor& log_sum_exp,
                            const Tensor& counted,
                            double loss_scale,
                            const Tensor& dlogits) {
    const std::int32_t tokens = *counted.data<std::int32_t>();
    const float scale = tokens > 0 ? static_cast<float>(loss_scale / tokens) : 0.0f;
    const std::int32_t* ids = rows.targets.data<std::int32_t>();
    const float* log_sums = log_sum_exp.data<float>();
    const std::int64_t count = rows.count(), width = rows.width();
    const auto gradient = EVENKEEL_FOR_CURRENT_ISA(row_softmax_gradient);
#pragma omp parallel for
    for (std::int64_t i = 0; i < count; ++i) {
        std::byte* out = row_of(dlogits, i);
        if (ids[i] < 0) {
            std::memset(out, 0, static_cast<std::size_t>(width) * size_of(dlogits.dtype()));
            continue;
        }
        gradient(is_bf16(rows.logits), row_of(rows.logits, i), log_sums[i], local(rows, ids[i]),
                 scale, out, width);
    }
}

}  // namespace evenkeel::cpu
