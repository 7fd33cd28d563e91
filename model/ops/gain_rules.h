// What is done to the gains of queries and keys between updates, and how far a norm that comes in by and by has
// come, on the CPU and on CUDA; nothing here waits for a GPU. All tensors are fp32, contiguous and on one device.
//
// H query heads, K key heads, each of G = H/K query heads; all of this rank. D head width.
#pragma once

#include <limits>

#include "attention/attention_config.h"
#include "framework/tensor.h"

namespace evenkeel {

// done [1], the updates made so far, becomes min(done + 1, steps), or stays if `advance` is false; lambda [1]
// becomes done / steps.
void advance_anneal(std::int64_t steps, bool advance, const Tensor& done, const Tensor& lambda);

struct GainLimits {
    float pull = 0.0f;  // share of the way back to the starts
    // gq gk of a pair of channels that turn together is at most this; of channels that do not turn at most
    // `unturned`, which is less strict by the magnitude of the rotation.
    float turned = std::numeric_limits<float>::infinity();
    float unturned = std::numeric_limits<float>::infinity();
    std::int64_t rotary_dim = 0;
    bool interleaved = false;
    float offset = 0.0f, unit = 1.0f;  // gain = offset + parameter / unit
};

// What qk_norm.gain_pull and gain_bound of `config` ask for (docs/math.md, "Gains that are held").
GainLimits gain_limits(const AttentionConfig& config);

// q [H, D] and k [K, D], parameters of gains: each goes the way back to its start, p += pull (start - p); then each
// gain of q is brought back, if it is larger, to limit / the larger gain of its pair in its key head. The parameter
// found for it never gives a larger gain, however it is rounded. Numbers that are not finite stay. starts: like q
// and k, undefined with pull 0.
void hold_gains(const GainLimits& limits,
                const Tensor& q_start,
                const Tensor& k_start,
                const Tensor& q,
                const Tensor& k);

}  // namespace evenkeel
