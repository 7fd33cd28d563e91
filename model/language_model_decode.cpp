// Decoding: token by token, with the keys and values of those before kept.
#include "model/decoder_block.h"
#include "model/language_model.h"

namespace evenkeel {

std::unique_ptr<LanguageModel::DecodeState> LanguageModel::start_decoding(std::int64_t batch,
                                                                          std::int64_t capacity) {
    auto state = std::make_unique<DecodeState>();
    for (const auto& block : blocks_) {
        state->caches.push_back(block->attention().make_cache(batch, capacity));
    }
    return state;
}

Tensor LanguageModel::decode(DecodeState& state, const Tensor& tokens) {
    Tensor x = embed(on_device(tokens));  // [B, T, C]
    for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
        x = blocks_[layer]->decode(x, state.caches[layer]);
    }
    const std::int64_t batch = x.size(0), ranks = grid_.tp_size();
    const Tensor last = x.slice(1, x.size(1) - 1, x.size(1)).contiguous();  // [B, 1, C]
    Tensor rstd;
    const Tensor local = project(normalize(last, rstd)).to(DType::kFloat32);  // [B, 1, V/P]
    const std::int64_t columns = local.size(2);
    const Tensor parts =
        Tensor::uninitialized({ranks, batch, columns}, DType::kFloat32, grid_.device());
    grid_.tensor().all_gather(local, parts);
    const Tensor gathered = parts.to(Device::kCpu);
    Tensor logits = Tensor::uninitialized({batch, config_.vocab_size}, DType::kFloat32);  // [B, V]
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        logits.slice(1, rank * columns, (rank + 1) * columns)
            .copy_from(gathered.slice(0, rank, rank + 1).view({batch, columns}));
    }
    return logits;
}

}  // namespace evenkeel
