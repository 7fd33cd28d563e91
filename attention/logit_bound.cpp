#include "attention/logit_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace evenkeel {
namespace {

// The largest gain of each pair of channels that turn together, of one head; others are pairs by themselves.
std::vector<double> pair_gains(const AttentionConfig& config,
                               const Tensor& gain,
                               std::int64_t head) {
    const std::int64_t D = config.head_dim, R = config.rope.rotary_dim(D);
    std::vector<double> largest(static_cast<std::size_t>(D), 0.0);
    const double turned = std::max(1.0, rope_magnitude(config.rope));
    for (std::int64_t c = 0; c < D; ++c) {
        const std::int64_t row = gain.defined() && gain.rank() == 2 ? head : 0;
        double value = gain.defined() ? std::abs(gain.data<float>()[row * D + c]) : 1.0;
        std::int64_t pair = c;
        if (c < R) {
            pair = config.rope.layout == RopeLayout::kHalfSplit ? c % (R / 2) : c - c % 2;
            value *= turned;
        }
        largest[static_cast<std::size_t>(pair)] =
            std::max(largest[static_cast<std::size_t>(pair)], value);
    }
    return largest;
}

// The length of a head's normalised row, at most.
double row_length(const AttentionConfig& config, std::int64_t all_heads) {
    if (config.qk_norm.kind == QkNormKind::kL2) return 1.0;
    const bool shared = config.qk_norm.scope == QkNormConfig::Scope::kFullWidth;
    return std::sqrt(static_cast<double>(config.head_dim * (shared ? all_heads : 1)));
}

}  // namespace

std::vector<double> logit_bounds(const AttentionConfig& config,
                                 const Tensor& q_gain,
                                 const Tensor& k_gain,
                                 std::int64_t heads,
                                 std::int64_t kv_heads) {
    const double cap =
        config.softcap > 0.0 ? config.softcap : std::numeric_limits<double>::infinity();
    std::vector<double> bounds(static_cast<std::size_t>(heads), cap);
    if (config.qk_norm.kind == QkNormKind::kNone) return bounds;
    const double lengths = row_length(config, config.num_heads) *
                           row_length(config, config.num_kv_heads) * config.logit_scale();
    for (std::int64_t head = 0; head < heads; ++head) {
        const auto q = pair_gains(config, q_gain, head);
        const auto k = pair_gains(config, k_gain, head / (heads / kv_heads));
        double product = 0.0;
        for (std::size_t p = 0; p < q.size(); ++p) product = std::max(product, q[p] * k[p]);
        double& bound = bounds[static_cast<std::size_t>(head)];
        const double logit = lengths * product;
        bound = config.softcap > 0.0 ? cap * std::tanh(logit / cap) : logit;
    }
    return bounds;
}

}  // namespace evenkeel
