#include "parallel/vocab.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "framework/convert.h"
#include "framework/dispatch.h"
#include "parallel/tensor_reduce.h"
#include "parallel/vocab_kernels.h"

namespace evenkeel {
namespace {

// Throws on the first token outside [0, vocab_size), or below `least` where that is -1.
void check_tokens(const char* op,
                  const char* name,
                  const Tensor& tokens,
                  std::int64_t vocab_size,
                  std::int32_t least) {
    check_dtype(op, name, tokens, DType::kInt32);
    EVENKEEL_CHECK(tokens.is_contiguous(), op, name, ": want a contiguous tensor");
    const std::int32_t* values = tokens.data<std::int32_t>();
    for (std::int64_t i = 0; i < tokens.numel(); ++i) {
        EVENKEEL_CHECK(values[i] >= least && values[i] < vocab_size, op, name, ": got ", values[i],
                       " at position ", i, ", want 0 to ", vocab_size - 1,
                       least < 0 ? ", or -1 for none" : "");
    }
}

// A row of logits as fp32: where it is, or widened into scratch.
const float* as_fp32(const float* row, std::vector<float>&, std::int64_t) { return row; }
const float* as_fp32(const bfloat16* row, std::vector<float>& scratch, std::int64_t count) {
    scratch.resize(static_cast<std::size_t>(count));
    widen(row, scratch.data(), count);
    return scratch.data();
}

// Logits seen as rows of the local vocabulary.
struct LogitRows {
    std::int64_t count, width, stride;
    std::int64_t vocab_begin;  // first global token of this rank

    // Index of the target in this rank's row; -1 when it is elsewhere.
    std::int64_t local(std::int32_t target) const {
        const std::int64_t index = target - vocab_begin;
        return target >= 0 && index >= 0 && index < width ? index : -1;
    }
};

LogitRows check_logits(const char* op,
                       const ProcessGrid& grid,
                       const Tensor& logits,
                       const Tensor& targets) {
    EVENKEEL_CHECK(logits.defined() && logits.rank() == 3, op, "logits: got ",
                   logits.defined() ? to_string(logits.shape()) : "no tensor",
                   ", want [B, T, V/P]");
    check_shape(op, "targets", targets, {logits.size(0), logits.size(1)});  // [B, T]
    const std::int64_t width = logits.size(2);
    EVENKEEL_CHECK(width > 0, op, "logits: got an empty vocabulary");
    check_tokens(op, "targets", targets, width * grid.tp_size(), -1);
    const std::int64_t rows = logits.size(0) * logits.size(1);
    const Tensor flat = logits.view({rows, width});
    return {rows, width, flat.stride(0), width * grid.tp_rank()};
}

std::int64_t counted_tokens(const Tensor& targets) {
    const std::int32_t* values = targets.data<std::int32_t>();
    return targets.numel() - std::count(values, values + targets.numel(), -1);
}

}  // namespace

VocabParallelEmbedding::VocabParallelEmbedding(const ProcessGrid& grid,
                                               const std::string& name,
                                               std::int64_t vocab_size,
                                               std::int64_t width,
                                               DType type)
    : grid_(grid),
      weight_(make_parameter(name,
                             {vocab_size, width},
                             Sharding::sharded(0, vocab_size, 1, grid.tp_rank(), grid.tp_size()),
                             type)) {}

Tensor VocabParallelEmbedding::forward(const Tensor& tokens) const {
    constexpr const char* kOp = "VocabParallelEmbedding::forward";
    EVENKEEL_CHECK(tokens.defined() && tokens.rank() == 2, kOp, "tokens: want [B, T]");
    check_tokens(kOp, "tokens", tokens, weight_.global_shape[0], 0);
    const std::int64_t width = weight_.global_shape[1];
    const Tensor y = Tensor::uninitialized({tokens.size(0), tokens.size(1), width},
                                           weight_.value.dtype());  // [B, T, C]
    const std::size_t row_bytes = static_cast<std::size_t>(width) * size_of(y.dtype());
    const std::int32_t* ids = tokens.data<std::int32_t>();
    const std::int64_t count = tokens.numel();
#pragma omp parallel for
    for (std::int64_t i = 0; i < count; ++i) {
        std::byte* to = y.raw() + static_cast<std::size_t>(i) * row_bytes;
        const std::int64_t row = ids[i] - weight_.sharding.begin;
        if (row >= 0 && ids[i] < weight_.sharding.end) {
            std::memcpy(to, weight_.value.raw() + static_cast<std::size_t>(row) * row_bytes,
                        row_bytes);
        } else {
            std::memset(to, 0, row_bytes);
        }
    }
    sum_partial_products(grid_, y);  // one rank's row and zeros: exact
    return y;
}

void VocabParallelEmbedding::backward(const Tensor& dy, const Tensor& tokens) {
    constexpr const char* kOp = "VocabParallelEmbedding::backward";
    EVENKEEL_CHECK(tokens.defined() && tokens.rank() == 2, kOp, "tokens: want [B, T]");
    check_tokens(kOp, "tokens", tokens, weight_.global_shape[0], 0);
    const std::int64_t width = weight_.global_shape[1];
    check_shape(kOp, "dy", dy, {tokens.size(0), tokens.size(1), width});  // [B, T, C]
    EVENKEEL_CHECK(dy.is_contiguous(), kOp, "dy: want a contiguous tensor");
    const std::int32_t* ids = tokens.data<std::int32_t>();
    float* grad = weight_.grad.data<float>();
    const std::int64_t count = tokens.numel();
    dispatch_float(dy.dtype(), kOp, [&]<typename T>() {
        const T* rows = dy.data<T>();
#pragma omp parallel
        {
            // Threads share the columns, so that each row is summed in token order.
            const std::int64_t team = omp_get_num_threads(), thread = omp_get_thread_num();
            const std::int64_t begin = width * thread / team, end = width * (thread + 1) / team;
            for (std::int64_t i = 0; i < count; ++i) {
                if (ids[i] < weight_.sharding.begin || ids[i] >= weight_.sharding.end) continue;
                float* to = grad + (ids[i] - weight_.sharding.begin) * width;
                const T* from = rows + i * width;
                for (std::int64_t c = begin; c < end; ++c) to[c] += static_cast<float>(from[c]);
            }
        }
    });
}

void VocabParallelEmbedding::collect_parameters(ParameterList& list) { list.push_back(&weight_); }

double cross_entropy_forward(const ProcessGrid& grid,
                             const Tensor& logits,
                             const Tensor& targets,
                             CrossEntropySaved& saved) {
    constexpr const char* kOp = "cross_entropy_forward";
    const LogitRows rows = check_logits(kOp, grid, logits, targets);
    const std::int32_t* ids = targets.data<std::int32_t>();
    const Tensor maxima = Tensor::uninitialized({rows.count}, DType::kFloat32);   // [B*T]
    const Tensor sums = Tensor::uninitialized({2, rows.count}, DType::kFloat32);  // [2, B*T]
    float* max = maxima.data<float>();
    float* sum_exp = sums.data<float>();
    float* target_logit = sum_exp + rows.count;
    dispatch_float(logits.dtype(), kOp, [&]<typename T>() {
        const T* z = logits.data<T>();
#pragma omp parallel
        {
            std::vector<float> scratch;
#pragma omp for
            for (std::int64_t i = 0; i < rows.count; ++i) {
                max[i] = row_max(as_fp32(z + i * rows.stride, scratch, rows.width), rows.width);
            }
        }
        grid.tensor().all_reduce(maxima, ReduceOp::kMax);
#pragma omp parallel
        {
            std::vector<float> scratch;
#pragma omp for
            for (std::int64_t i = 0; i < rows.count; ++i) {
                const float* row = as_fp32(z + i * rows.stride, scratch, rows.width);
                sum_exp[i] = row_sum_exp(row, max[i], rows.width);
                const std::int64_t target = rows.local(ids[i]);
                target_logit[i] = target >= 0 ? row[target] : 0.0f;
            }
        }
    });
    grid.tensor().all_reduce(sums, ReduceOp::kSum);

    saved.log_sum_exp = Tensor::uninitialized(targets.shape(), DType::kFloat32);  // [B, T]
    float* log_sum_exp = saved.log_sum_exp.data<float>();
    double loss = 0;
    for (std::int64_t i = 0; i < rows.count; ++i) {
        log_sum_exp[i] = max[i] + std::log(sum_exp[i]);
        if (ids[i] >= 0) {
            loss += (static_cast<double>(max[i]) - target_logit[i]) +
                    std::log(static_cast<double>(sum_exp[i]));
        }
    }
    const std::int64_t counted = counted_tokens(targets);
    return counted > 0 ? loss / static_cast<double>(counted) : 0.0;
}

void cross_entropy_backward(const ProcessGrid& grid,
                            const Tensor& logits,
                            const Tensor& targets,
                            const CrossEntropySaved& saved,
                            double loss_scale,
                            const Tensor& dlogits) {
    constexpr const char* kOp = "cross_entropy_backward";
    const LogitRows rows = check_logits(kOp, grid, logits, targets);
    check_shape(kOp, "dlogits", dlogits, logits.shape());
    check_dtype(kOp, "dlogits", dlogits, logits.dtype());
    check_shape(kOp, "log_sum_exp", saved.log_sum_exp, targets.shape());
    const std::int64_t out_stride = dlogits.view({rows.count, rows.width}).stride(0);
    const std::int64_t counted = counted_tokens(targets);
    const float scale =
        counted > 0 ? static_cast<float>(loss_scale / static_cast<double>(counted)) : 0.0f;
    const std::int32_t* ids = targets.data<std::int32_t>();
    const float* log_sum_exp = saved.log_sum_exp.data<float>();
    dispatch_float(logits.dtype(), kOp, [&]<typename T>() {
        const T* z = logits.data<T>();
        T* dz = dlogits.data<T>();
#pragma omp parallel
        {
            std::vector<float> scratch, result(static_cast<std::size_t>(rows.width));
#pragma omp for
            for (std::int64_t i = 0; i < rows.count; ++i) {
                T* out = dz + i * out_stride;
                if (ids[i] < 0) {
                    std::fill(out, out + rows.width, T(0.0f));
                    continue;
                }
                const float* row = as_fp32(z + i * rows.stride, scratch, rows.width);
                row_softmax(row, log_sum_exp[i], scale, result.data(), rows.width);
                if (const std::int64_t target = rows.local(ids[i]); target >= 0) {
                    result[static_cast<std::size_t>(target)] -= scale;
                }
                if constexpr (std::is_same_v<T, float>) {
                    std::copy(result.begin(), result.end(), out);
                } else {
                    narrow(result.data(), out, rows.width);
                }
            }
        }
    });
}

}  // namespace evenkeel
