#include "parallel/vocab.h"

#include "framework/memory_scope.h"
#include "parallel/embedding.h"
#include "parallel/vocab_backends.h"

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

// As check_tokens; on CUDA, where the host does not see the values, what can be seen.
void check_ids(const char* op,
               const char* name,
               const Tensor& ids,
               Device device,
               std::int64_t vocab_size,
               std::int32_t least) {
    EVENKEEL_CHECK(ids.defined() && ids.device() == device, op, name, ": got ",
                   ids.defined() ? name_of(ids.device()) : "no tensor", ", want one on ",
                   name_of(device));
    if (device == Device::kCpu) return check_tokens(op, name, ids, vocab_size, least);
    check_dtype(op, name, ids, DType::kInt32);
    EVENKEEL_CHECK(ids.is_contiguous(), op, name, ": want a contiguous tensor");
}

void check_rows(const char* op, const char* name, const Tensor& rows, const Tensor& tokens) {
    EVENKEEL_CHECK(rows.defined() && rows.rank() == 2 && rows.is_contiguous(), op, name, ": got ",
                   rows.defined() ? to_string(rows.shape()) : "no tensor",
                   ", want a contiguous tensor of rank 2");
    EVENKEEL_CHECK(rows.dtype() == DType::kFloat32 || rows.dtype() == DType::kBFloat16, op, name,
                   ": got ", name_of(rows.dtype()), ", want fp32 or bf16");
    EVENKEEL_CHECK(tokens.defined() && tokens.rank() == 1, op, "tokens: want [N]");
    EVENKEEL_CHECK(tokens.numel() <= INT32_MAX, op, "tokens: got ", tokens.numel(),
                   ", want fewer than 2^31");
}

LogitRows checked_rows(const char* op,
                       const ProcessGrid& grid,
                       const Tensor& logits,
                       std::int64_t vocab_size,
                       const Tensor& targets) {
    EVENKEEL_CHECK(logits.defined() && logits.rank() == 3, op, "logits: got ",
                   logits.defined() ? to_string(logits.shape()) : "no tensor",
                   ", want [B, T, V/P]");
    EVENKEEL_CHECK(logits.dtype() == DType::kFloat32 || logits.dtype() == DType::kBFloat16, op,
                   "logits: got ", name_of(logits.dtype()), ", want fp32 or bf16");
    const std::int64_t count = logits.size(0) * logits.size(1), width = logits.size(2);
    check_shape(op, "targets", targets, {logits.size(0), logits.size(1)});  // [B, T]
    const PieceRange part = piece_range(vocab_size, grid.tp_size(), grid.tp_rank());
    EVENKEEL_CHECK(vocab_size > 0, op, "vocab_size: got ", vocab_size, ", want 1 or more");
    EVENKEEL_CHECK(width == part.size(), op, "logits: got ", width, " of a vocabulary of ",
                   vocab_size, ", want the ", part.size(), " of rank ", grid.tp_rank(), " of ",
                   grid.tp_size());
    EVENKEEL_CHECK(count <= INT32_MAX, op, "logits: got ", count, " rows, want fewer than 2^31");
    check_ids(op, "targets", targets, logits.device(), vocab_size, -1);
    return {logits.view({count, width}), targets.view({count}), part.begin, vocab_size};
}

}  // namespace

void embedding_forward(const Tensor& tokens,
                       const Tensor& weight,
                       std::int64_t begin,
                       std::int64_t vocab_size,
                       const Tensor& y) {
    constexpr const char* kOp = "embedding_forward";
    check_rows(kOp, "weight", weight, tokens);
    check_ids(kOp, "tokens", tokens, weight.device(), vocab_size, 0);
    check_rows(kOp, "y", y, tokens);
    check_shape(kOp, "y", y, {tokens.numel(), weight.size(1)});  // [N, C]
    check_dtype(kOp, "y", y, weight.dtype());
    EVENKEEL_CHECK(y.device() == weight.device(), kOp, "y: device: got ", name_of(y.device()),
                   ", want ", name_of(weight.device()));
    if (y.numel() == 0) return;
    switch (weight.device()) {
        case Device::kCpu:
            return cpu::embedding_forward(tokens, weight, begin, y);
        case Device::kCuda:
            return cuda::embedding_forward(tokens, weight, begin, vocab_size, y);
    }
}

void embedding_backward(const Tensor& dy,
                        const Tensor& tokens,
                        std::int64_t begin,
                        std::int64_t vocab_size,
                        const Tensor& grad) {
    constexpr const char* kOp = "embedding_backward";
    check_rows(kOp, "grad", grad, tokens);
    check_dtype(kOp, "grad", grad, DType::kFloat32);
    check_ids(kOp, "tokens", tokens, grad.device(), vocab_size, 0);
    check_rows(kOp, "dy", dy, tokens);
    check_shape(kOp, "dy", dy, {tokens.numel(), grad.size(1)});  // [N, C]
    EVENKEEL_CHECK(dy.device() == grad.device(), kOp, "dy: device: got ", name_of(dy.device()),
                   ", want ", name_of(grad.device()));
    if (dy.numel() == 0 || grad.numel() == 0) return;
    switch (grad.device()) {
        case Device::kCpu:
            return cpu::embedding_backward(dy, tokens, begin, grad);
        case Device::kCuda:
            return cuda::embedding_backward(dy, tokens, begin, grad);
    }
}

VocabParallelEmbedding::VocabParallelEmbedding(const ProcessGrid& grid,
                                               const std::string& name,
                                               std::int64_t vocab_size,
                                               std::int64_t width,
                                               DType type)
    : grid_(grid),
      weight_(declare_parameter(
          name,
          {vocab_size, width},
          Sharding::sharded_unevenly(0, vocab_size, grid.tp_rank(), grid.tp_size()),
          type)) {}

Tensor VocabParallelEmbedding::forward(const Tensor& tokens, const SequenceRegion& region) const {
    const MemoryScope scope(weight_.name, " (forward)");
    EVENKEEL_CHECK(tokens.defined() && tokens.rank() == 2, "VocabParallelEmbedding::forward",
                   "tokens: want [B, T]");
    const std::int64_t width = weight_.global_shape[1];
    const Tensor y =
        Tensor::uninitialized({tokens.size(0), tokens.size(1), width}, weight_.value.dtype(),
                              weight_.value.device());  // [B, T, C]
    embedding_forward(tokens.view({tokens.numel()}), weight_.value, weight_.sharding.begin,
                      weight_.global_shape[0], y.view({tokens.numel(), width}));
    return sum_rows(grid_, region, y);  // one rank's row and zeros: exact
}

void VocabParallelEmbedding::backward(const Tensor& dy,
                                      const Tensor& tokens,
                                      const SequenceRegion& region) {
    const MemoryScope scope(weight_.name, " (backward)");
    constexpr const char* kOp = "VocabParallelEmbedding::backward";
    EVENKEEL_CHECK(tokens.defined() && tokens.rank() == 2, kOp, "tokens: want [B, T]");
    const std::int64_t width = weight_.global_shape[1];
    const Tensor all = gather_rows(grid_, region, dy);
    check_shape(kOp, "dy", all, {tokens.size(0), tokens.size(1), width});  // [B, T, C]
    EVENKEEL_CHECK(all.is_contiguous(), kOp, "dy: want a contiguous tensor");
    embedding_backward(all.view({tokens.numel(), width}), tokens.view({tokens.numel()}),
                       weight_.sharding.begin, weight_.global_shape[0], weight_.grad);
}

void VocabParallelEmbedding::collect_parameters(ParameterList& list) { list.push_back(&weight_); }

void cross_entropy_forward(const ProcessGrid& grid,
                           const Tensor& logits,
                           std::int64_t vocab_size,
                           const Tensor& targets,
                           CrossEntropySaved& saved,
                           double weight,
                           const Tensor& loss) {
    constexpr const char* kOp = "cross_entropy_forward";
    const MemoryScope scope("loss");
    const LogitRows rows = checked_rows(kOp, grid, logits, vocab_size, targets);
    const Device device = logits.device();
    check_shape(kOp, "loss", loss, {1});
    check_dtype(kOp, "loss", loss, DType::kFloat64);
    EVENKEEL_CHECK(loss.device() == device, kOp, "loss: device: got ", name_of(loss.device()),
                   ", want ", name_of(device));
    const std::int64_t count = rows.count();
    saved.log_sum_exp = Tensor::uninitialized(targets.shape(), DType::kFloat32, device);  // [B, T]
    saved.counted = Tensor::zeros({1}, DType::kInt32, device);
    const Tensor maxima = Tensor::uninitialized({count}, DType::kFloat32, device);   // [B*T]
    const Tensor sums = Tensor::uninitialized({2, count}, DType::kFloat32, device);  // [2, B*T]
    const Tensor log_sum_exp = saved.log_sum_exp.view({count});
    const bool on_cpu = device == Device::kCpu, some = count > 0;

    Tensor own_maxima;
    if (on_cpu) {
        cpu::cross_entropy_maxima(rows, maxima);
    } else if (some) {
        own_maxima = Tensor::uninitialized({count}, DType::kFloat32, device);
        cuda::cross_entropy_maxima(rows, maxima, own_maxima, sums);
    }
    grid.tensor().all_reduce(maxima, ReduceOp::kMax);
    if (on_cpu) {
        cpu::cross_entropy_sums(rows, maxima, sums);
    } else if (some) {
        cuda::cross_entropy_sums(own_maxima, maxima, sums);
    }
    grid.tensor().all_reduce(sums, ReduceOp::kSum);
    if (on_cpu) {
        cpu::cross_entropy_finish(rows, maxima, sums, weight, log_sum_exp, saved.counted, loss);
    } else if (some) {
        cuda::cross_entropy_finish(rows, maxima, sums, weight, log_sum_exp, saved.counted, loss);
    }
}

double mean_cross_entropy(const ProcessGrid& grid,
                          const Tensor& logits,
                          std::int64_t vocab_size,
                          const Tensor& targets,
                          CrossEntropySaved& saved) {
    const Tensor loss = Tensor::zeros({1}, DType::kFloat64, logits.device());
    cross_entropy_forward(grid, logits, vocab_size, targets, saved, 1.0, loss);
    return *loss.to(Device::kCpu).data<double>();
}

void cross_entropy_backward(const ProcessGrid& grid,
                            const Tensor& logits,
                            std::int64_t vocab_size,
                            const Tensor& targets,
                            const CrossEntropySaved& saved,
                            double loss_scale,
                            const Tensor& dlogits) {
    constexpr const char* kOp = "cross_entropy_backward";
    const LogitRows rows = checked_rows(kOp, grid, logits, vocab_size, targets);
    check_shape(kOp, "dlogits", dlogits, logits.shape());
    check_dtype(kOp, "dlogits", dlogits, logits.dtype());
    check_shape(kOp, "log_sum_exp", saved.log_sum_exp, targets.shape());
    check_shape(kOp, "counted", saved.counted, {1});
    for (const Tensor* tensor : {&dlogits, &saved.log_sum_exp, &saved.counted}) {
        EVENKEEL_CHECK(tensor->device() == logits.device(), kOp, "devices: got ",
                       name_of(tensor->device()), " and ", name_of(logits.device()),
                       ", want the same");
    }
    if (rows.count() == 0) return;
    const Tensor log_sum_exp = saved.log_sum_exp.view({rows.count()});
    const Tensor out = dlogits.view({rows.count(), rows.width()});
    switch (logits.device()) {
        case Device::kCpu:
            return cpu::cross_entropy_gradient(rows, log_sum_exp, saved.counted, loss_scale, out);
        case Device::kCuda:
            return cuda::cross_entropy_gradient(rows, log_sum_exp, saved.counted, loss_scale, out);
    }
}

Tensor gather_vocabulary(const ProcessGrid& grid, const Tensor& logits, std::int64_t vocab_size) {
    const std::int64_t ranks = grid.tp_size(), rows = logits.size(0);
    const std::int64_t columns = piece_range(vocab_size, ranks, grid.tp_rank()).size();
    check_shape("gather_vocabulary", "logits", logits, {rows, columns});
    // A message is as long as the longest part; what lies behind a shorter one is not looked at.
    const std::int64_t most = piece_range(vocab_size, ranks, 0).size();
    Tensor own = logits.to(DType::kFloat32).contiguous();
    if (columns < most) {
        const Tensor part = own;
        own = Tensor::zeros({rows, most}, DType::kFloat32, grid.device());
        own.slice(1, 0, columns).copy_from(part);
    }
    const Tensor parts = Tensor::uninitialized({ranks, rows, most}, DType::kFloat32, grid.device());
    grid.tensor().all_gather(own, parts);
    const Tensor gathered = parts.to(Device::kCpu);
    const Tensor whole = Tensor::uninitialized({rows, vocab_size}, DType::kFloat32);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const PieceRange of_rank = piece_range(vocab_size, ranks, rank);
        whole.slice(1, of_rank.begin, of_rank.end)
            .copy_from(
                gathered.slice(0, rank, rank + 1).view({rows, most}).slice(1, 0, of_rank.size()));
    }
    return whole;
}

}  // namespace evenkeel
