// The settings of an attention layer: normalisation of queries and keys, what happens to logits, masks,
// rotation. Every method of model/methods/ is a set of values of these.
//
// H query heads, K key/value heads, D head width, P tensor-parallel ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/qk_norm_rope.h"
#include "attention/rope.h"
#include "framework/config.h"
#include "framework/device.h"

namespace evenkeel {

struct QkNormConfig {
    using Kind = QkNormKind;
    enum class Scope {
        kHead,       // a statistic for each head
        kFullWidth,  // one for all heads of a token (OLMo 2), summed over TP; kRms only
    };
    enum class Gain {
        kPerHeadChannel,  // q [H, D], k [K, D], with their heads
        kSharedChannel,   // q [D], k [D], replicated on all ranks
        kPerHeadScalar,   // [H], a factor of the logits: on q alone
        kScalar,          // [1], the same for all heads, replicated: on q alone
        kNone,
    };
    enum class GainForm {
        kLinear,       // gain = gain_offset + parameter / gain_unit
        kExponential,  // gain = exp(min(parameter, ln gain_limit)) (Liu et al. 2022, Swin V2, 3.2)
    };
    Kind kind = Kind::kRms;
    Scope scope = Scope::kHead;
    Gain gain = Gain::kPerHeadChannel;
    GainForm gain_form = GainForm::kLinear;
    double eps = 1e-6;
    double gain_init = 1.0;    // the first gain, whatever parameter makes it
    double gain_offset = 0.0;  // 1: gains are stored as gain - 1 (Gemma, Qwen3-Next)
    double gain_unit = 1.0;    // what a gain of 1 is stored as: AdamW's steps count by it (nGPT)
    double gain_limit = 100.0;
    bool gain_weight_decay = false;
    // Steps over which the norm comes in: q (gain / rms)^lambda with lambda from 0 to 1, kRms with scope kHead
    // only (qk_norm_rope.h, docs/retrofit.md). 0: it is there from the start.
    std::int64_t anneal_steps = 0;
    // After each update gains are held so that no logit can be larger (logit_bound.h). 0: as they are.
    double gain_bound = 0.0;
    // Share of the way back to their first values that gains are pulled at each update. 0: none.
    double gain_pull = 0.0;
    void visit_fields(ConfigVisitor& v);
};

struct AttentionConfig {
    enum class Sink {
        kNone,
        kOffByOne,  // a logit of 0: 1 is added to the softmax's denominator
        kLearned,   // a logit for each query head
    };
    std::int64_t num_heads = 8;
    std::int64_t num_kv_heads = 4;
    std::int64_t head_dim = 32;
    bool qkv_bias = false;     // of W_q, W_k, W_v, before the norm (Qwen2)
    bool output_bias = false;  // of W_o
    std::int64_t window = 0;   // sliding window in tokens; 0: none
    bool causal = true;
    double softmax_scale = 0.0;  // 0: 1 / sqrt(head_dim); with unit-length q and k (kL2) 1
    double softcap = 0.0;        // 0: none
    Sink sink = Sink::kNone;
    double sink_init = 0.0;  // of learned ones
    // Per-head rescaling of W_q and W_k after a step in which a head's largest logit was above it (Kimi
    // Team 2025, Kimi K2, section 2.1). 0: none.
    double qk_clip_threshold = 0.0;
    QkNormConfig qk_norm;
    RopeConfig rope;
    void visit_fields(ConfigVisitor& v);
    // Throws kConfig naming the key to change: head counts against each other and against P, head_dim
    // against the kernels and RoPE, every number that has no meaning, and methods that exclude each other.
    void validate(std::int64_t tensor_parallel, Device device = Device::kCpu) const;

    // What is allowed but mostly a mistake: a sentence each, which names the key and where to read more.
    std::vector<std::string> warnings() const;

    // softmax_scale, or what 0 stands for.
    double logit_scale() const;
};

}  // namespace evenkeel
