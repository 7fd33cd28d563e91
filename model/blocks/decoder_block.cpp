#include "model/blocks/decoder_block.h"

#include <cmath>

#include "model/blocks/ngpt_block.h"
#include "model/blocks/parallel_block.h"
#include "model/blocks/residual_block.h"

namespace evenkeel {

DecoderBlock::DecoderBlock(const ProcessGrid& grid,
                           const ModelConfig& config,
                           std::int64_t layer,
                           DType type,
                           const std::string& prefix)
    : prefix_(prefix),
      recompute_(config.recompute),
      attention_(grid, config.layer_attention(layer), config.width, type, prefix + ".attention"),
      feed_forward_(grid, config, type, prefix + ".feed_forward"),
      gated_(is_gated(config.activation)),
      weight_std_(config.init_std),
      // Each of the 2 L residual branches adds variance; dividing by their root keeps the sum's
      // (Radford et al. 2019, section 2.3).
      output_std_(config.init_std / std::sqrt(2.0 * static_cast<double>(config.num_layers))) {}

void DecoderBlock::initialize(std::uint64_t seed) {
    attention_.initialize(weight_std_, output_std_, seed);
    feed_forward_.initialize(weight_std_, output_std_, seed);
}

void DecoderBlock::probe_attention(FiniteProbe& probe, const AttentionSaved& saved) const {
    probe.check(prefix_ + ".attention.qkv (forward)", saved.qkv);
    probe.check(prefix_ + ".attention.q (forward)", saved.q);
    probe.check(prefix_ + ".attention.k (forward)", saved.k);
    probe.check(prefix_ + ".attention.out (forward)", saved.out);
}

void DecoderBlock::forget(DecoderBlockSaved& saved) const {
    switch (recompute_) {
        case Recompute::kNone:
            break;
        case Recompute::kElementwise:
            saved.attention.x = saved.feed_forward.x = {};
            saved.feed_forward.hidden = {};
            attention_.forget_turned(saved.attention);
            break;
        case Recompute::kAttention:
            saved.attention = {};
            break;
        case Recompute::kFull: {
            const Tensor x = saved.x;
            saved = {};
            saved.x = x;
            break;
        }
    }
}

LayerWeights DecoderBlock::weights() const {
    LayerWeights weights{&attention_.wq(), &attention_.wk(), &attention_.wv(), &attention_.wo()};
    weights.wq_bias = attention_.wq_bias(), weights.wk_bias = attention_.wk_bias();
    if (!attention_.q_gain().name.empty()) weights.q_gain = &attention_.q_gain();
    if (!attention_.k_gain().name.empty()) weights.k_gain = &attention_.k_gain();
    if (gated_) weights.w_gate = &feed_forward_.in(0);
    weights.w_up = &feed_forward_.in(gated_ ? 1 : 0);
    weights.w_down = &feed_forward_.down();
    return weights;
}

std::unique_ptr<DecoderBlock> make_decoder_block(const ProcessGrid& grid,
                                                 const ModelConfig& config,
                                                 std::int64_t layer,
                                                 DType type) {
    const std::string prefix = concat("layers.", layer);
    switch (config.architecture) {
        case Architecture::kPreNorm:
        case Architecture::kPostNorm:
        case Architecture::kSandwichNorm:
            return std::make_unique<ResidualBlock>(grid, config, layer, type, prefix);
        case Architecture::kNgpt:
            return std::make_unique<NgptBlock>(grid, config, layer, type, prefix);
        case Architecture::kParallel:
            return std::make_unique<ParallelBlock>(grid, config, layer, type, prefix);
    }
    throw_error(ErrorCode::kConfig, "make_decoder_block", "got an architecture without a block");
}

}  // namespace evenkeel
