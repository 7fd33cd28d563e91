#include "model/blocks/ngpt_block.h"

#include <cmath>

#include "framework/memory_scope.h"
#include "model/ops/elementwise.h"
#include "model/ops/normalized_update.h"
#include "parallel/sequence_region.h"

namespace evenkeel {
namespace {

constexpr double kFirstRate = 0.05;

Parameter make_rate(const ProcessGrid& grid, const std::string& name, std::int64_t width) {
    Parameter rate = declare_parameter(
        name, {width}, Sharding::replicated(grid.tp_rank(), grid.tp_size()), DType::kFloat32);
    rate.weight_decay = false;
    rate.gradient_sum = gradient_sum_over_rows(grid);
    return rate;
}

// The stream after a layer that returned `out`; inverse as normalized_update_forward makes it.
Tensor moved(
    const Tensor& h, const Tensor& out, const Parameter& rate, double factor, Tensor& inverse) {
    const Tensor y = Tensor::uninitialized(h.shape(), h.dtype(), h.device());
    inverse = Tensor::uninitialized({h.size(0) * h.size(1), 2}, DType::kFloat32, h.device());
    normalized_update_forward(h, out, rate.value, factor, y, inverse);
    return y;
}

}  // namespace

NgptBlock::NgptBlock(const ProcessGrid& grid,
                     const ModelConfig& config,
                     std::int64_t layer,
                     DType type,
                     const std::string& prefix)
    : DecoderBlock(grid, config, layer, type, prefix),
      rate_factor_(kFirstRate * std::sqrt(static_cast<double>(config.width))),
      attention_rate_(make_rate(grid, prefix + ".attention_rate", config.width)),
      feed_forward_rate_(make_rate(grid, prefix + ".feed_forward_rate", config.width)) {}

void NgptBlock::initialize(std::uint64_t seed) {
    DecoderBlock::initialize(seed);
    const auto first = static_cast<float>(kFirstRate / rate_factor_);
    init_constant(attention_rate_, first);
    init_constant(feed_forward_rate_, first);
}

void NgptBlock::add_attention(const SequenceLayout& layout, DecoderBlockSaved& saved) {
    saved.attention_out = attention_.project(layout, saved.attention);
    saved.residual =
        moved(saved.x, saved.attention_out, attention_rate_, rate_factor_, saved.attention_inverse);
}

Tensor NgptBlock::add_feed_forward(const SequenceLayout& layout,
                                   DecoderBlockSaved& saved,
                                   FiniteProbe* probe) {
    saved.feed_forward_out =
        feed_forward_.forward(saved.residual, layout.region, saved.feed_forward, probe);
    return moved(saved.residual, saved.feed_forward_out, feed_forward_rate_, rate_factor_,
                 saved.feed_forward_inverse);
}

Tensor NgptBlock::forward(const Tensor& x,
                          const SequenceLayout& layout,
                          DecoderBlockSaved& saved,
                          AttentionStats* stats,
                          FiniteProbe* probe) {
    saved.x = x;
    const MemoryScope of_attention(prefix_, ".attention (forward)");
    attention_.attend(x, layout, saved.attention, stats);
    add_attention(layout, saved);
    if (probe != nullptr) {
        probe_attention(*probe, saved.attention);
        probe->check(prefix_ + ".attention (forward)", saved.attention_out);
        probe->check(prefix_ + " hidden state after attention (forward)", saved.residual);
    }
    const MemoryScope of_feed_forward(prefix_, ".feed_forward (forward)");
    Tensor y = add_feed_forward(layout, saved, probe);
    if (probe != nullptr) {
        probe->check(prefix_ + " hidden state after feed_forward (forward)", y);
    }
    return y;
}

void NgptBlock::backward(const Tensor& gradient,
                         const SequenceLayout& layout,
                         DecoderBlockSaved& saved) {
    if (recompute_ == Recompute::kFull) {
        const MemoryScope of_attention(prefix_, ".attention (made again)");
        attention_.attend(saved.x, layout, saved.attention, nullptr);
        add_attention(layout, saved);
        const MemoryScope of_feed_forward(prefix_, ".feed_forward (made again)");
        add_feed_forward(layout, saved, nullptr);
    }
    if (recompute_ == Recompute::kElementwise) {
        const MemoryScope scope(prefix_, ".feed_forward (made again)");
        saved.feed_forward.x = saved.residual;
        feed_forward_.activate_again(saved.feed_forward);
    }
    const Tensor dout =
        Tensor::uninitialized(gradient.shape(), gradient.dtype(), gradient.device());
    {
        const MemoryScope scope(prefix_, ".feed_forward (backward)");
        normalized_update_backward(
            gradient, saved.residual, saved.feed_forward_out, feed_forward_rate_.value,
            rate_factor_, saved.feed_forward_inverse, gradient, dout, feed_forward_rate_.grad);
        add_in_place(gradient, feed_forward_.backward(dout, layout.region, saved.feed_forward));
        saved.feed_forward = {};
        saved.feed_forward_out = {};
    }
    if (recompute_ == Recompute::kAttention) {
        const MemoryScope scope(prefix_, ".attention (made again)");
        attention_.attend(saved.x, layout, saved.attention, nullptr);
    }
    if (recompute_ == Recompute::kElementwise) {
        const MemoryScope scope(prefix_, ".attention (made again)");
        saved.attention.x = saved.x;
        attention_.turn_again(layout, saved.attention);
    }
    const MemoryScope scope(prefix_, ".attention (backward)");
    normalized_update_backward(gradient, saved.x, saved.attention_out, attention_rate_.value,
                               rate_factor_, saved.attention_inverse, gradient, dout,
                               attention_rate_.grad);
    add_in_place(gradient, attention_.backward(dout, layout, saved.attention));
}

Tensor NgptBlock::decode(const Tensor& x, KvCache& cache) {
    const MemoryScope scope(prefix_, " (decode)");
    Tensor inverse;
    const Tensor residual =
        moved(x, attention_.decode(x, cache), attention_rate_, rate_factor_, inverse);
    FeedForwardSaved unused;
    return moved(residual, feed_forward_.forward(residual, {}, unused, nullptr), feed_forward_rate_,
                 rate_factor_, inverse);
}

void NgptBlock::collect_parameters(ParameterList& list) {
    attention_.collect_parameters(list);
    list.push_back(&attention_rate_);
    feed_forward_.collect_parameters(list);
    list.push_back(&feed_forward_rate_);
}

}  // namespace evenkeel
