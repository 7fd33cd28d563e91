#include "model/blocks/parallel_block.h"

#include "framework/memory_scope.h"
#include "model/ops/elementwise.h"
#include "parallel/sequence_region.h"

namespace evenkeel {

ParallelBlock::ParallelBlock(const ProcessGrid& grid,
                             const ModelConfig& config,
                             std::int64_t layer,
                             DType type,
                             const std::string& prefix)
    : DecoderBlock(grid, config, layer, type, prefix),
      grid_(grid),
      norm_(grid, config, prefix + ".attention_norm") {}

void ParallelBlock::initialize(std::uint64_t seed) {
    DecoderBlock::initialize(seed);
    norm_.initialize();
}

// Both layers read all rows of the norm's output: gathered once, and kept as this rank's.
Tensor ParallelBlock::forward(const Tensor& x,
                              const SequenceLayout& layout,
                              DecoderBlockSaved& saved,
                              AttentionStats* stats,
                              FiniteProbe* probe) {
    saved.x = x;
    const MemoryScope of_attention(prefix_, ".attention (forward)");
    const Tensor normed = norm_.forward(x, saved.rstd_attention);
    const Tensor all = gather_rows(grid_, layout.region, normed);
    Tensor y = attention_.forward(all, layout, saved.attention, stats);
    if (probe != nullptr) {
        probe->check(prefix_ + ".attention_norm (forward)", normed);
        probe_attention(*probe, saved.attention);
        probe->check(prefix_ + ".attention (forward)", y);
    }
    add_in_place(y, x);
    const MemoryScope of_feed_forward(prefix_, ".feed_forward (forward)");
    add_in_place(y, feed_forward_.forward(all, layout.region, saved.feed_forward, probe));
    saved.attention.x = saved.feed_forward.x = normed;
    if (probe != nullptr) probe->check(prefix_ + " residual (forward)", y);
    return y;
}

// Nobody reads what the two layers return, so that their last products are not made again. Both read all rows of the
// norm's output and of the gradient.
void ParallelBlock::backward(const Tensor& gradient,
                             const SequenceLayout& layout,
                             DecoderBlockSaved& saved) {
    Tensor normed = saved.feed_forward.x;
    if (recompute_ == Recompute::kFull || recompute_ == Recompute::kElementwise) {
        const MemoryScope scope(prefix_, ".feed_forward (made again)");
        normed = norm_.forward(saved.x, saved.rstd_attention);
    }
    PendingRows rows = start_gather_rows(grid_, layout.region, normed);
    PendingRows of_gradient = start_gather_rows(grid_, layout.region, gradient);
    const Tensor all = rows.wait(), all_gradient = of_gradient.wait();
    if (recompute_ == Recompute::kFull) {
        const MemoryScope scope(prefix_, ".feed_forward (made again)");
        feed_forward_.activate(all, layout.region, saved.feed_forward);
    } else if (recompute_ == Recompute::kElementwise) {
        const MemoryScope scope(prefix_, ".feed_forward (made again)");
        feed_forward_.activate_again(saved.feed_forward);
    }
    Tensor dnormed;
    {
        const MemoryScope scope(prefix_, ".feed_forward (backward)");
        saved.feed_forward.x = all;
        dnormed = feed_forward_.backward(all_gradient, layout.region, saved.feed_forward);
        saved.feed_forward = {};
    }
    if (recompute_ == Recompute::kElementwise) {
        const MemoryScope scope(prefix_, ".attention (made again)");
        attention_.turn_again(layout, saved.attention);
    } else if (recompute_ != Recompute::kNone) {
        const MemoryScope scope(prefix_, ".attention (made again)");
        attention_.attend(all, layout, saved.attention, nullptr);
    }
    const MemoryScope scope(prefix_, ".attention (backward)");
    saved.attention.x = all;
    add_in_place(dnormed, attention_.backward(all_gradient, layout, saved.attention));
    norm_.backward(dnormed, saved.x, saved.rstd_attention, true, gradient);
}

Tensor ParallelBlock::decode(const Tensor& x, KvCache& cache) {
    const MemoryScope scope(prefix_, " (decode)");
    Tensor unused;
    const Tensor normed = norm_.forward(x, unused);
    const Tensor y = attention_.decode(normed, cache);
    add_in_place(y, x);
    FeedForwardSaved unused_saved;
    add_in_place(y, feed_forward_.forward(normed, {}, unused_saved, nullptr));
    return y;
}

void ParallelBlock::collect_parameters(ParameterList& list) {
    norm_.collect_parameters(list);
    attention_.collect_parameters(list);
    feed_forward_.collect_parameters(list);
}

}  // namespace evenkeel
