#include "model/blocks/residual_block.h"

#include "framework/memory_scope.h"
#include "model/ops/elementwise.h"

namespace evenkeel {
namespace {

// What a layer is given: x, or its norm.
Tensor before(const std::optional<Norm>& norm, const Tensor& x, Tensor& statistics) {
    return norm.has_value() ? norm->forward(x, statistics) : x;
}

// The stream x with what a layer returned, or its norm: in the memory of `out` where there is no norm.
Tensor after(const std::optional<Norm>& norm,
             const Tensor& out,
             const Tensor& x,
             Tensor& statistics) {
    const Tensor sum = norm.has_value() ? norm->forward(out, statistics) : out;
    add_in_place(sum, x);
    return sum;
}

// The gradient of what a layer returned, from that of the stream.
Tensor before_backward(const std::optional<Norm>& norm,
                       const Tensor& gradient,
                       const Tensor& out,
                       const Tensor& statistics) {
    if (!norm.has_value()) return gradient;
    const Tensor dout =
        Tensor::uninitialized(gradient.shape(), gradient.dtype(), gradient.device());
    norm->backward(gradient, out, statistics, false, dout);
    return dout;
}

// Adds the gradient of what a layer was given to that of the stream x.
void after_backward(const std::optional<Norm>& norm,
                    const Tensor& dgiven,
                    const Tensor& x,
                    const Tensor& statistics,
                    const Tensor& gradient) {
    if (norm.has_value()) return norm->backward(dgiven, x, statistics, true, gradient);
    add_in_place(gradient, dgiven);
}

}  // namespace

ResidualBlock::Norms ResidualBlock::make_norms(const ProcessGrid& grid,
                                               const ModelConfig& config,
                                               const std::string& layer) {
    Norms norms;
    if (config.architecture != Architecture::kPostNorm) {
        norms.pre.emplace(grid, config, layer + "_norm");
    }
    if (config.architecture != Architecture::kPreNorm) {
        norms.post.emplace(grid, config, layer + "_post_norm");
    }
    return norms;
}

ResidualBlock::ResidualBlock(const ProcessGrid& grid,
                             const ModelConfig& config,
                             std::int64_t layer,
                             DType type,
                             const std::string& prefix)
    : DecoderBlock(grid, config, layer, type, prefix),
      of_attention_(make_norms(grid, config, prefix + ".attention")),
      of_feed_forward_(make_norms(grid, config, prefix + ".feed_forward")) {}

void ResidualBlock::initialize(std::uint64_t seed) {
    DecoderBlock::initialize(seed);
    for (Norms* norms : {&of_attention_, &of_feed_forward_}) {
        if (norms->pre.has_value()) norms->pre->initialize();
        if (norms->post.has_value()) norms->post->initialize();
    }
}

void ResidualBlock::attend(const SequenceLayout& layout,
                           DecoderBlockSaved& saved,
                           AttentionStats* stats) {
    const Tensor given = before(of_attention_.pre, saved.x, saved.rstd_attention);
    attention_.attend(given, layout, saved.attention, stats);
}

void ResidualBlock::add_attention(const SequenceLayout& layout,
                                  DecoderBlockSaved& saved,
                                  FiniteProbe* probe) {
    const Tensor out = attention_.project(layout, saved.attention);
    if (probe != nullptr) {
        if (of_attention_.pre.has_value()) {
            probe->check(prefix_ + ".attention_norm (forward)", saved.attention.x);
        }
        probe_attention(*probe, saved.attention);
        probe->check(prefix_ + ".attention (forward)", out);
    }
    if (of_attention_.post.has_value()) saved.attention_out = out;
    saved.residual = after(of_attention_.post, out, saved.x, saved.rstd_attention_post);
}

Tensor ResidualBlock::forward(const Tensor& x,
                              const SequenceLayout& layout,
                              DecoderBlockSaved& saved,
                              AttentionStats* stats,
                              FiniteProbe* probe) {
    saved.x = x;
    const MemoryScope of_attention(prefix_, ".attention (forward)");
    attend(layout, saved, stats);
    add_attention(layout, saved, probe);

    const MemoryScope of_feed_forward(prefix_, ".feed_forward (forward)");
    const Tensor given = before(of_feed_forward_.pre, saved.residual, saved.rstd_feed_forward);
    if (probe != nullptr) {
        probe->check(prefix_ + " residual after attention (forward)", saved.residual);
        if (of_feed_forward_.pre.has_value()) {
            probe->check(prefix_ + ".feed_forward_norm (forward)", given);
        }
    }
    const Tensor out = feed_forward_.forward(given, layout.region, saved.feed_forward, probe);
    if (of_feed_forward_.post.has_value()) saved.feed_forward_out = out;
    Tensor y = after(of_feed_forward_.post, out, saved.residual, saved.rstd_feed_forward_post);
    if (probe != nullptr) probe->check(prefix_ + " residual after feed_forward (forward)", y);
    return y;
}

void ResidualBlock::make_again(const SequenceLayout& layout, DecoderBlockSaved& saved) {
    const MemoryScope of_attention(prefix_, ".attention (made again)");
    attend(layout, saved, nullptr);
    add_attention(layout, saved, nullptr);
    const MemoryScope of_feed_forward(prefix_, ".feed_forward (made again)");
    const Tensor given = before(of_feed_forward_.pre, saved.residual, saved.rstd_feed_forward);
    // Where no norm follows nobody reads what the layer returns.
    if (!of_feed_forward_.post.has_value()) {
        return feed_forward_.activate(given, layout.region, saved.feed_forward);
    }
    saved.feed_forward_out =
        feed_forward_.forward(given, layout.region, saved.feed_forward, nullptr);
    of_feed_forward_.post->forward(saved.feed_forward_out, saved.rstd_feed_forward_post);
}

void ResidualBlock::backward(const Tensor& gradient,
                             const SequenceLayout& layout,
                             DecoderBlockSaved& saved) {
    if (recompute_ == Recompute::kFull) make_again(layout, saved);
    if (recompute_ == Recompute::kElementwise) {
        const MemoryScope scope(prefix_, ".feed_forward (made again)");
        saved.feed_forward.x =
            before(of_feed_forward_.pre, saved.residual, saved.rstd_feed_forward);
        feed_forward_.activate_again(saved.feed_forward);
    }
    {
        const MemoryScope scope(prefix_, ".feed_forward (backward)");
        const Tensor dfeed_forward = feed_forward_.backward(
            before_backward(of_feed_forward_.post, gradient, saved.feed_forward_out,
                            saved.rstd_feed_forward_post),
            layout.region, saved.feed_forward);
        after_backward(of_feed_forward_.pre, dfeed_forward, saved.residual, saved.rstd_feed_forward,
                       gradient);
        saved.feed_forward = {};
        saved.feed_forward_out = {};
    }
    if (recompute_ == Recompute::kAttention) {
        const MemoryScope scope(prefix_, ".attention (made again)");
        attend(layout, saved, nullptr);
    }
    if (recompute_ == Recompute::kElementwise) {
        const MemoryScope scope(prefix_, ".attention (made again)");
        saved.attention.x = before(of_attention_.pre, saved.x, saved.rstd_attention);
        attention_.turn_again(layout, saved.attention);
    }
    const MemoryScope scope(prefix_, ".attention (backward)");
    const Tensor dattention =
        attention_.backward(before_backward(of_attention_.post, gradient, saved.attention_out,
                                            saved.rstd_attention_post),
                            layout, saved.attention);
    after_backward(of_attention_.pre, dattention, saved.x, saved.rstd_attention, gradient);
}

Tensor ResidualBlock::decode(const Tensor& x, KvCache& cache) {
    const MemoryScope scope(prefix_, " (decode)");
    Tensor unused;
    const Tensor residual =
        after(of_attention_.post, attention_.decode(before(of_attention_.pre, x, unused), cache), x,
              unused);
    FeedForwardSaved unused_saved;
    const Tensor out = feed_forward_.forward(before(of_feed_forward_.pre, residual, unused), {},
                                             unused_saved, nullptr);
    return after(of_feed_forward_.post, out, residual, unused);
}

void ResidualBlock::collect_parameters(ParameterList& list) {
    const auto collect = [&](std::optional<Norm>& norm) {
        if (norm.has_value()) norm->collect_parameters(list);
    };
    collect(of_attention_.pre);
    attention_.collect_parameters(list);
    collect(of_attention_.post);
    collect(of_feed_forward_.pre);
    feed_forward_.collect_parameters(list);
    collect(of_feed_forward_.post);
}

}  // namespace evenkeel
