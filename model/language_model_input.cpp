// Batches on their way into a language model.
#include <algorithm>
#include <numeric>

#include "framework/upload.h"
#include "model/language_model.h"

namespace evenkeel {

// Refuses wrong ids on the CPU, since no GPU throws.
void LanguageModel::check_batch(const Batch& batch) const {
    check_tokens("LanguageModel", "tokens", batch.tokens, config_.vocab_size, 0);
    check_tokens("LanguageModel", "targets", batch.targets, config_.vocab_size, -1);
}

// Ids of the CPU on the model's device.
Tensor LanguageModel::on_device(const Tensor& ids) const {
    if (grid_.device() == Device::kCpu) return ids;
    check_tokens("LanguageModel", "ids", ids, config_.vocab_size, -1);
    return uploads_->upload(ids);
}

LanguageModel::Input LanguageModel::prepare(const Batch& batch) const {
    Input input{batch.tokens.defined() ? on_device(batch.tokens) : Tensor(),
                batch.targets.defined() ? on_device(batch.targets) : Tensor(),
                {}};
    if (batch.cu_seqlens.empty()) return input;
    const auto& bounds = batch.cu_seqlens;
    const std::int64_t rows = batch.tokens.numel();
    EVENKEEL_CHECK(bounds.size() > 1 && bounds.front() == 0 && bounds.back() == rows,
                   "LanguageModel", "cu_seqlens: got ", bounds.size(), " numbers from ",
                   bounds.front(), " to ", bounds.back(), ", want two or more, from 0 to ", rows);
    const Tensor positions = Tensor::uninitialized({1, rows}, DType::kInt32);
    auto* const values = positions.data<std::int32_t>();
    for (std::size_t i = 1; i < bounds.size(); ++i) {
        EVENKEEL_CHECK(bounds[i - 1] <= bounds[i] && bounds[i] <= rows, "LanguageModel",
                       "cu_seqlens: got ", bounds[i], " after ", bounds[i - 1],
                       ", want ascending numbers up to ", rows);
        std::iota(values + bounds[i - 1], values + bounds[i], 0);
        input.layout.positions_end =
            std::max<std::int64_t>(input.layout.positions_end, bounds[i] - bounds[i - 1]);
    }
    // A table for all documents that a row can hold, so that it is made once.
    input.layout.positions_end =
        std::max(input.layout.positions_end, std::min(batch.tokens.size(1), config_.max_seq_len));
    input.tokens = input.tokens.view({1, rows});
    if (input.targets.defined()) input.targets = input.targets.view({1, rows});
    input.layout.positions =
        grid_.device() == Device::kCpu ? positions : uploads_->upload(positions);
    input.layout.cu_seqlens = bounds;
    return input;
}

}  // namespace evenkeel
