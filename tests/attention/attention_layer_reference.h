// The whole attention layer in double, unsharded: projections around the reference attention.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attention/tensor_parallel_attention.h"

namespace evenkeel::testing {

struct LayerCase {
    AttentionConfig config;
    std::int64_t batch = 1, tokens = 1, width = 1;
    SequenceLayout layout;  // positions, if any, the same for every sequence
    // By the last part of the parameter's name: wq, wk, wv [N*D, C], wo [C, H*D], and as the
    // configuration has them wq_bias, wk_bias, wv_bias, wo_bias, q_gain, k_gain and sink.
    std::map<std::string, std::vector<double>> parameters;
};

struct LayerResult {
    std::vector<double> y, dx;                             // [B, T, C]
    std::vector<double> max_logit;                         // [H]
    std::map<std::string, std::vector<double>> gradients;  // like parameters
};

// Forward of x and backward of dy, both [B, T, C].
LayerResult attention_layer(const LayerCase& c,
                            const std::vector<double>& x,
                            const std::vector<double>& dy);

// "wq" of "layers.0.attention.wq".
std::string short_name(const std::string& parameter_name);

}  // namespace evenkeel::testing
