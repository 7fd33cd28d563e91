#include "model/decoder_block.h"

#include <cmath>

#include "framework/memory_scope.h"
#include "model/elementwise.h"

namespace evenkeel {

DecoderBlock::DecoderBlock(const ProcessGrid& grid,
                           const ModelConfig& config,
                           DType type,
                           const std::string& prefix)
    : prefix_(prefix),
      gated_(config.activation == Activation::kSwiGlu),
      weight_std_(config.init_std),
      // Each of the 2 L residual branches adds variance; dividing by their root keeps the sum's
      // (Radford et al. 2019, section 2.3).
      output_std_(config.init_std / std::sqrt(2.0 * static_cast<double>(config.num_layers))),
      attention_norm_(grid, prefix + ".attention_norm", config.width, config.norm_eps),
      attention_(grid, config.attention, config.width, type, prefix + ".attention"),
      feed_forward_norm_(grid, prefix + ".feed_forward_norm", config.width, config.norm_eps),
      feed_forward_(grid, config, type, prefix + ".feed_forward") {}

void DecoderBlock::initialize(std::uint64_t seed) {
    attention_norm_.initialize();
    attention_.initialize(weight_std_, output_std_, seed);
    feed_forward_norm_.initialize();
    feed_forward_.initialize(weight_std_, output_std_, seed);
}

Tensor DecoderBlock::forward(const Tensor& x,
                             const SequenceLayout& layout,
                             DecoderBlockSaved& saved,
                             AttentionStats* stats,
                             FiniteProbe* probe) {
    saved.x = x;
    const MemoryScope of_attention(prefix_, ".attention (forward)");
    Tensor normed = attention_norm_.forward(x, saved.rstd_attention);
    saved.residual = attention_.forward(normed, layout, saved.attention, stats);
    if (probe != nullptr) {
        probe->check(prefix_ + ".attention_norm (forward)", normed);
        probe->check(prefix_ + ".attention.qkv (forward)", saved.attention.qkv);
        probe->check(prefix_ + ".attention.q (forward)", saved.attention.q);
        probe->check(prefix_ + ".attention.k (forward)", saved.attention.k);
        probe->check(prefix_ + ".attention.out (forward)", saved.attention.out);
        probe->check(prefix_ + ".attention (forward)", saved.residual);
    }
    add_in_place(saved.residual, x);

    const MemoryScope of_feed_forward(prefix_, ".feed_forward (forward)");
    normed = feed_forward_norm_.forward(saved.residual, saved.rstd_feed_forward);
    if (probe != nullptr) {
        probe->check(prefix_ + " residual after attention (forward)", saved.residual);
        probe->check(prefix_ + ".feed_forward_norm (forward)", normed);
    }
    Tensor y = feed_forward_.forward(normed, saved.feed_forward, probe);
    add_in_place(y, saved.residual);
    if (probe != nullptr) probe->check(prefix_ + " residual after feed_forward (forward)", y);
    return y;
}

void DecoderBlock::backward(const Tensor& gradient,
                            const SequenceLayout& layout,
                            const DecoderBlockSaved& saved) {
    const MemoryScope of_feed_forward(prefix_, ".feed_forward (backward)");
    const Tensor dfeed_forward = feed_forward_.backward(gradient, saved.feed_forward);
    feed_forward_norm_.backward(dfeed_forward, saved.residual, saved.rstd_feed_forward, true,
                                gradient);
    const MemoryScope of_attention(prefix_, ".attention (backward)");
    const Tensor dattention = attention_.backward(gradient, layout, saved.attention);
    attention_norm_.backward(dattention, saved.x, saved.rstd_attention, true, gradient);
}

Tensor DecoderBlock::decode(const Tensor& x, KvCache& cache) {
    const MemoryScope scope(prefix_, " (decode)");
    Tensor rstd;
    const Tensor residual = attention_.decode(attention_norm_.forward(x, rstd), cache);
    add_in_place(residual, x);
    FeedForwardSaved unused;
    Tensor y = feed_forward_.forward(feed_forward_norm_.forward(residual, rstd), unused, nullptr);
    add_in_place(y, residual);
    return y;
}

LayerWeights DecoderBlock::weights() const {
    LayerWeights weights{&attention_.wq(), &attention_.wk(), &attention_.wv(), &attention_.wo()};
    if (!attention_.q_gain().name.empty()) weights.q_gain = &attention_.q_gain();
    if (!attention_.k_gain().name.empty()) weights.k_gain = &attention_.k_gain();
    if (gated_) weights.w_gate = &feed_forward_.in(0);
    weights.w_up = &feed_forward_.in(gated_ ? 1 : 0);
    weights.w_down = &feed_forward_.down();
    return weights;
}

void DecoderBlock::collect_parameters(ParameterList& list) {
    attention_norm_.collect_parameters(list);
    attention_.collect_parameters(list);
    feed_forward_norm_.collect_parameters(list);
    feed_forward_.collect_parameters(list);
}

}  // namespace evenkeel
