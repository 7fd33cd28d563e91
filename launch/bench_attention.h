// Attention of one size and the tensors that it takes, for measurements.
#pragma once

#include "attention/flash_attention.h"
#include "launch/bench.h"

namespace evenkeel::bench {

struct AttentionCase {
    std::int64_t head_dim, tokens, heads, kv_heads;
    AttentionOptions options = {};

    // Multiply-adds of q k^T and p v over the pairs that the causal mask leaves, twice.
    double forward_flops() const {
        const double pairs = 0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1);
        return 4.0 * static_cast<double>(heads * head_dim) * pairs;
    }
    // dv, dp, dq, dk and the logits again: five products for forward's two.
    double backward_flops() const { return 2.5 * forward_flops(); }
};

struct AttentionTensors {
    Tensor q, k, v, out, lse, dout, dq, dk, dv;
    AttentionStats stats;
    AttentionOptions options;

    AttentionTensors(const AttentionCase& c, bool backward) : options(c.options) {
        const Shape query = {1, c.tokens, c.heads, c.head_dim};
        const Shape key = {1, c.tokens, c.kv_heads, c.head_dim};
        q = random_tensor(query, DType::kBFloat16, "q");
        k = random_tensor(key, DType::kBFloat16, "k");
        v = random_tensor(key, DType::kBFloat16, "v");
        out = Tensor::uninitialized(query, DType::kBFloat16);
        lse = Tensor::uninitialized({1, c.heads, c.tokens}, DType::kFloat32);
        stats.max_logit = Tensor::uninitialized({c.heads}, DType::kFloat32);
        stats.entropy = Tensor::uninitialized({c.heads}, DType::kFloat32);
        if (!backward) return;
        dout = random_tensor(query, DType::kBFloat16, "dout");
        dq = Tensor::uninitialized(query, DType::kBFloat16);
        dk = Tensor::uninitialized(key, DType::kBFloat16);
        dv = Tensor::uninitialized(key, DType::kBFloat16);
    }
    void forward() { flash_attention_forward(q, k, v, options, out, lse, &stats); }
    void backward() { flash_attention_backward(q, k, v, out, lse, dout, options, dq, dk, dv); }
};

}  // namespace evenkeel::bench
