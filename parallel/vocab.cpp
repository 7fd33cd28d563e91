#include "parallel/vocab.h"

#include <omp.h>

#include <cmath>
#include <cstring>

#include "framework/dispatch.h"
#include "parallel/tensor_reduce.h"
#include "parallel/vocab_rows.h"

namespace evenkeel {

void check_tokens(const char* op,
                  const char* name,
                  const Tensor& tokens,
                  std::int64_t vocab_size,
                  std::int32_t least) {
    check_dtype(op, name, tokens, DType::kInt32);
    EVENKEEL_CHECK_CODE(tokens.device() == Device::kCpu, ErrorCode::kNotBuilt, op, name,
                        ": device: got cuda, want cpu");
    EVENKEEL_CHECK(tokens.is_contiguous(), op, name, ": want a contiguous tensor");
    const std::int32_t* values = tokens.data<std::int32_t>();
    for (std::int64_t i = 0; i < tokens.numel(); ++i) {
        EVENKEEL_CHECK(values[i] >= least && values[i] < vocab_size, op, name, ": got ", values[i],
                       " at position ", i, ", want 0 to ", vocab_size - 1,
                       least < 0 ? ", or -1 for none" : "");
    }
}

namespace {

// Logits seen as rows of the local vocabulary.
struct LogitRows {
    std::int64_t count, width, stride;
    bool bf16;
    std::int64_t vocab_begin;  // first global token of this rank

    LogitRows(const ProcessGrid& grid, const Tensor& logits)
        : count(logits.size(0) * logits.size(1)),
          width(logits.size(2)),
          stride(logits.view({count, width}).stride(0)),
          bf16(logits.dtype() == DType::kBFloat16),
          vocab_begin(width * grid.tp_rank()) {}
    std::byte* row(const Tensor& logits, std::int64_t index) const {
        return logits.raw() + index * stride * static_cast<std::int64_t>(bf16 ? 2 : 4);
    }
    float element(const std::byte* row, std::int64_t index) const {
        return bf16 ? static_cast<float>(reinterpret_cast<const bfloat16*>(row)[index])
                    : reinterpret_cast<const float*>(row)[index];
    }
    // Index of the target in this rank's row; -1 when it is elsewhere.
    std::int64_t local(std::int32_t target) const {
        const std::int64_t index = target - vocab_begin;
        return target >= 0 && index >= 0 && index < width ? index : -1;
    }
};

void check_logits(const char* op,
                  const ProcessGrid& grid,
                  const Tensor& logits,
                  const Tensor& targets) {
    EVENKEEL_CHECK(logits.defined() && logits.rank() == 3, op, "logits: got ",
                   logits.defined() ? to_string(logits.shape()) : "no tensor",
                   ", want [B, T, V/P]");
    EVENKEEL_CHECK(logits.dtype() == DType::kFloat32 || logits.dtype() == DType::kBFloat16, op,
                   "logits: got ", name_of(logits.dtype()), ", want fp32 or bf16");
    EVENKEEL_CHECK_CODE(logits.device() == Device::kCpu, ErrorCode::kNotBuilt, op,
                        "logits: device: got cuda, want cpu");
    check_shape(op, "targets", targets, {logits.size(0), logits.size(1)});  // [B, T]
    EVENKEEL_CHECK(logits.size(2) > 0, op, "logits: got an empty vocabulary");
    check_tokens(op, "targets", targets, logits.size(2) * grid.tp_size(), -1);
}

}  // namespace

VocabParallelEmbedding::VocabParallelEmbedding(const ProcessGrid& grid,
                                               const std::string& name,
                                               std::int64_t vocab_size,
                                               std::int64_t width,
                                               DType type)
    : grid_(grid),
      weight_(declare_parameter(name,
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

void cross_entropy_forward(const ProcessGrid& grid,
                           const Tensor& logits,
                           const Tensor& targets,
                           CrossEntropySaved& saved,
                           double weight,
                           const Tensor& loss) {
    constexpr const char* kOp = "cross_entropy_forward";
    check_logits(kOp, grid, logits, targets);
    check_shape(kOp, "loss", loss, {1});
    check_dtype(kOp, "loss", loss, DType::kFloat64);
    const LogitRows rows(grid, logits);
    const std::int32_t* ids = targets.data<std::int32_t>();
    const Tensor maxima = Tensor::uninitialized({rows.count}, DType::kFloat32);   // [B*T]
    const Tensor sums = Tensor::uninitialized({2, rows.count}, DType::kFloat32);  // [2, B*T]
    float* max = maxima.data<float>();
    float* sum_exp = sums.data<float>();
    float* target_logit = sum_exp + rows.count;
    const auto largest = EVENKEEL_FOR_CURRENT_ISA(row_max);
    const auto sum_of_exponentials = EVENKEEL_FOR_CURRENT_ISA(row_sum_exp);
#pragma omp parallel for
    for (std::int64_t i = 0; i < rows.count; ++i) {
        max[i] = largest(rows.bf16, rows.row(logits, i), rows.width);
    }
    grid.tensor().all_reduce(maxima, ReduceOp::kMax);
#pragma omp parallel for
    for (std::int64_t i = 0; i < rows.count; ++i) {
        const std::byte* row = rows.row(logits, i);
        sum_exp[i] = sum_of_exponentials(rows.bf16, row, max[i], rows.width);
        const std::int64_t target = rows.local(ids[i]);
        target_logit[i] = target >= 0 ? rows.element(row, target) : 0.0f;
    }
    grid.tensor().all_reduce(sums, ReduceOp::kSum);

    saved.log_sum_exp = Tensor::uninitialized(targets.shape(), DType::kFloat32);  // [B, T]
    float* log_sum_exp = saved.log_sum_exp.data<float>();
    double sum = 0;
    std::int32_t counted = 0;
    for (std::int64_t i = 0; i < rows.count; ++i) {
        log_sum_exp[i] = max[i] + std::log(sum_exp[i]);
        if (ids[i] < 0) continue;
        ++counted;
        sum += (static_cast<double>(max[i]) - target_logit[i]) +
               std::log(static_cast<double>(sum_exp[i]));
    }
    saved.counted = Tensor::uninitialized({1}, DType::kInt32);
    *saved.counted.data<std::int32_t>() = counted;
    if (counted > 0) *loss.data<double>() += weight * (sum / counted);
}

double mean_cross_entropy(const ProcessGrid& grid,
                          const Tensor& logits,
                          const Tensor& targets,
                          CrossEntropySaved& saved) {
    const Tensor loss = Tensor::zeros({1}, DType::kFloat64, logits.device());
    cross_entropy_forward(grid, logits, targets, saved, 1.0, loss);
    return *loss.to(Device::kCpu).data<double>();
}

void cross_entropy_backward(const ProcessGrid& grid,
                            const Tensor& logits,
                            const Tensor& targets,
                            const CrossEntropySaved& saved,
                            double loss_scale,
                            const Tensor& dlogits) {
    constexpr const char* kOp = "cross_entropy_backward";
    check_logits(kOp, grid, logits, targets);
    const LogitRows rows(grid, logits);
    check_shape(kOp, "dlogits", dlogits, logits.shape());
    check_dtype(kOp, "dlogits", dlogits, logits.dtype());
    check_shape(kOp, "log_sum_exp", saved.log_sum_exp, targets.shape());
    const LogitRows out_rows(grid, dlogits);
    check_shape(kOp, "counted", saved.counted, {1});
    const std::int32_t counted = *saved.counted.data<std::int32_t>();
    const float scale = counted > 0 ? static_cast<float>(loss_scale / counted) : 0.0f;
    const std::int32_t* ids = targets.data<std::int32_t>();
    const float* log_sum_exp = saved.log_sum_exp.data<float>();
    const auto gradient = EVENKEEL_FOR_CURRENT_ISA(row_softmax_gradient);
#pragma omp parallel for
    for (std::int64_t i = 0; i < rows.count; ++i) {
        std::byte* out = out_rows.row(dlogits, i);
        if (ids[i] < 0) {
            std::memset(out, 0, static_cast<std::size_t>(rows.width) * size_of(dlogits.dtype()));
            continue;
        }
        gradient(rows.bf16, rows.row(logits, i), log_sum_exp[i], rows.local(ids[i]), scale, out,
                 rows.width);
    }
}

}  // namespace evenkeel
