#include "model/blocks/feed_forward.h"

#include "model/ops/elementwise.h"

namespace evenkeel {
namespace {

std::vector<ColumnParallelLinear::Part> input_parts(const ProcessGrid& grid,
                                                    const ModelConfig& config,
                                                    const std::string& prefix) {
    const std::int64_t width = config.feed_forward_width;
    const Sharding rows = Sharding::sharded(0, width, 1, grid.tp_rank(), grid.tp_size());
    std::vector<ColumnParallelLinear::Part> parts;
    if (is_gated(config.activation)) parts.push_back({prefix + ".w_gate", width, rows});
    parts.push_back({prefix + ".w_up", width, rows});
    return parts;
}

}  // namespace

FeedForward::FeedForward(const ProcessGrid& grid,
                         const ModelConfig& config,
                         DType type,
                         const std::string& prefix)
    : prefix_(prefix),
      activation_(config.activation),
      in_(grid, input_parts(grid, config, prefix), config.width, type, config.feed_forward_bias),
      down_(grid,
            prefix + ".w_down",
            config.feed_forward_width,
            config.width,
            Sharding::sharded(1, config.feed_forward_width, 1, grid.tp_rank(), grid.tp_size()),
            type,
            config.feed_forward_bias) {}

void FeedForward::initialize(double weight_std, double output_std, std::uint64_t seed) {
    const int parts = is_gated(activation_) ? 2 : 1;
    for (int i = 0; i < parts; ++i) init_normal(in_.part(i), weight_std, seed);
    init_normal(down_.weight(), output_std, seed);
}

void FeedForward::activate(const Tensor& x,
                           const SequenceRegion& region,
                           FeedForwardSaved& saved) const {
    saved.x = x;
    saved.inner = in_.forward(x, region);  // [B, T, 2 F/P] or [B, T, F/P]
    activate_again(saved);
}

void FeedForward::activate_again(FeedForwardSaved& saved) const {
    const std::int64_t halves = is_gated(activation_) ? 2 : 1;
    saved.hidden = Tensor::uninitialized(
        {saved.inner.size(0), saved.inner.size(1), in_.local_out_features() / halves},
        saved.inner.dtype(), saved.inner.device());  // [B, T, F/P]
    switch (activation_) {
        case Activation::kSwiGlu:
            swiglu_forward(saved.inner, saved.hidden);
            break;
        case Activation::kGelu:
            gelu_forward(saved.inner, saved.hidden);
            break;
        case Activation::kGeGlu:
            geglu_forward(saved.inner, saved.hidden);
            break;
    }
}

Tensor FeedForward::forward(const Tensor& x,
                            const SequenceRegion& region,
                            FeedForwardSaved& saved,
                            FiniteProbe* probe) const {
    activate(x, region, saved);
    Tensor y = down_.forward(saved.hidden, region);  // like x
    if (probe != nullptr) {
        probe->check(prefix_ + ".inner (forward)", saved.inner);
        probe->check(prefix_ + ".hidden (forward)", saved.hidden);
        probe->check(prefix_ + " (forward)", y);
    }
    return y;
}

Tensor FeedForward::backward(const Tensor& dy,
                             const SequenceRegion& region,
                             FeedForwardSaved& saved) {
    const Tensor dinner = saved.inner;  // in place
    {
        const Tensor dhidden = down_.backward(dy, saved.hidden, region);  // [B, T, F/P]
        saved.hidden = saved.inner = {};
        switch (activation_) {
            case Activation::kSwiGlu:
                swiglu_backward(dhidden, dinner, dinner);
                break;
            case Activation::kGelu:
                gelu_backward(dhidden, dinner, dinner);
                break;
            case Activation::kGeGlu:
                geglu_backward(dhidden, dinner, dinner);
                break;
        }
    }
    return in_.backward(dinner, saved.x, region);
}

void FeedForward::collect_parameters(ParameterList& list) {
    in_.collect_parameters(list);
    down_.collect_parameters(list);
}

}  // namespace evenkeel
