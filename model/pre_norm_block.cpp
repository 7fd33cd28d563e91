#include "model/pre_norm_block.h"

#include "framework/memory_scope.h"
#include "model/elementwise.h"

namespace evenkeel {

PreNormBlock::PreNormBlock(const ProcessGrid& grid,
                           const ModelConfig& config,
                           DType type,
                           const std::string& prefix)
    : DecoderBlock(grid, config, type, prefix),
      attention_norm_(grid, prefix + ".attention_norm", config.width, config.norm_eps),
      feed_forward_norm_(grid, prefix + ".feed_forward_norm", config.width, config.norm_eps) {}

void PreNormBlock::initialize(std::uint64_t seed) {
    DecoderBlock::initialize(seed);
    attention_norm_.initialize();
    feed_forward_norm_.initialize();
}

Tensor PreNormBlock::forward(const Tensor& x,
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
        probe_attention(*probe, saved.attention);
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

void PreNormBlock::backward(const Tensor& gradient,
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

Tensor PreNormBlock::decode(const Tensor& x, KvCache& cache) {
    const MemoryScope scope(prefix_, " (decode)");
    Tensor rstd;
    const Tensor residual = attention_.decode(attention_norm_.forward(x, rstd), cache);
    add_in_place(residual, x);
    FeedForwardSaved unused;
    Tensor y = feed_forward_.forward(feed_forward_norm_.forward(residual, rstd), unused, nullptr);
    add_in_place(y, residual);
    return y;
}

void PreNormBlock::collect_parameters(ParameterList& list) {
    attention_norm_.collect_parameters(list);
    attention_.collect_parameters(list);
    feed_forward_norm_.collect_parameters(list);
    feed_forward_.collect_parameters(list);
}

}  // namespace evenkeel
