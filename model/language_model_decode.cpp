// Decoding: token by token, with the keys and values of those before kept.
#include "model/blocks/decoder_block.h"
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
    Tensor x = embed(on_device(tokens), {});  // [B, T, C], on every rank
    for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
        x = blocks_[layer]->decode(x, state.caches[layer]);
    }
    const Tensor last = x.slice(1, x.size(1) - 1, x.size(1)).contiguous();  // [B, 1, C]
    Tensor rstd;
    const Tensor local = project(normalize(last, rstd), {});  // [B, 1, V/P]
    return gather_vocabulary(grid_, local.view({local.size(0), local.size(2)}), config_.vocab_size);
}

}  // namespace evenkeel
