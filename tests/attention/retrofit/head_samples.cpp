#include "tests/attention/retrofit/head_samples.h"

#include <cmath>

#include "framework/rng.h"

namespace evenkeel::testing {

const char* name_of(HeadKind kind) {
    switch (kind) {
        case HeadKind::kFluctuating:
            return "fluctuating";
        case HeadKind::kTied:
            return "tied";
        case HeadKind::kBiased:
            return "biased";
        case HeadKind::kHot:
            return "hot";
    }
    return "";
}

AttentionConfig plain_attention(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
    AttentionConfig config;
    config.num_heads = heads;
    config.num_kv_heads = kv_heads;
    config.head_dim = head_dim;
    config.qk_norm.kind = QkNormKind::kNone;
    return config;
}

Tensor make_heads(HeadKind kind, bool keys, const Shape& shape, std::uint64_t seed) {
    const std::int64_t B = shape[0], T = shape[1], N = shape[2], D = shape[3];
    const CounterRng rng(seed, purpose(keys ? "keys" : "queries"));
    std::uint64_t draw = 0;
    const auto normal = [&] { return rng.normal(draw++); };
    const double size = kind == HeadKind::kHot ? 4.0 : 1.3;
    std::vector<double> bias, width;  // of each head's channels
    for (std::int64_t c = 0; c < N * D; ++c) {
        bias.push_back(kind == HeadKind::kBiased && keys ? 3.0 * normal() : 0.0);
        if (kind == HeadKind::kTied) bias.back() = normal();
        width.push_back(std::exp(0.5 * normal()));
    }
    Tensor rows = Tensor::uninitialized(shape, DType::kFloat32);
    float* to = rows.data<float>();
    for (std::int64_t token = 0; token < B * T; ++token) {
        const double whole = std::exp(0.3 * normal());  // of the row's norm
        for (std::int64_t n = 0; n < N; ++n) {
            // A quarter of the channels has a size of its own in each row.
            const double own = std::exp(0.6 * normal());
            for (std::int64_t c = 0; c < D; ++c) {
                const auto channel = static_cast<std::size_t>(n * D + c);
                const double spread = kind == HeadKind::kTied ? 0.1 : 1.0;
                const double part = c % 4 == 0 ? own : 1.0;
                const double value = bias[channel] + spread * width[channel] * normal();
                *to++ = static_cast<float>(size * whole * part * value);
            }
        }
    }
    return rows;
}

}  // namespace evenkeel::testing
