// Rotary position embedding (Su et al. 2021, RoFormer, section 3.2.2) with the context extensions in use.
//
// Channel pair p of a head turns by the angle position * frequency(p). Half-split layout (GPT-NeoX, Llama
// in Hugging Face form) pairs channels p and p + R/2; interleaved (the paper, GPT-J) pairs 2p and 2p + 1.
// Only the first R = rotary_dim channels turn; the rest pass.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/config.h"
#include "framework/tensor.h"

namespace evenkeel {

enum class RopeLayout { kHalfSplit, kInterleaved };

struct RopeConfig {
    enum class Scaling { kNone, kLinear, kLlama3, kYarn };
    double theta = 10000.0;
    double rotary_fraction = 1.0;  // R / D; R must come out even. 0: no rotation
    RopeLayout layout = RopeLayout::kHalfSplit;
    Scaling scaling = Scaling::kNone;
    double factor = 1.0;                        // linear, llama3, yarn: context extension
    double low_freq_factor = 1.0;               // llama3
    double high_freq_factor = 4.0;              // llama3
    double beta_fast = 32.0;                    // yarn
    double beta_slow = 1.0;                     // yarn
    double attention_factor = 0.0;              // yarn; 0: 0.1 ln(factor) + 1
    std::int64_t original_max_position = 8192;  // llama3, yarn: trained context
    void visit_fields(ConfigVisitor& v);

    // R for a head width D; throws kConfig unless it is an even number of at most D.
    std::int64_t rotary_dim(std::int64_t head_dim) const;
};

// The R/2 angular frequencies, in double. Linear: Chen et al. 2023 (Position interpolation). Llama 3: the
// piecewise scaling of that model's release. YaRN: Peng et al. 2023, section 3.2 (NTK-by-parts), in the form
// of that paper's released code, which every published checkpoint uses: the ramp between kept and
// interpolated pairs is linear in the pair index, its ends rounded outwards to whole pairs. (The paper's
// text writes it linear in the number of turns; both agree outside the ramp.) Throws kConfig.
std::vector<double> rope_frequencies(const RopeConfig& config, std::int64_t head_dim);
// What cos and sin are multiplied by: YaRN's temperature (Peng et al. 2023, eq. 22), else 1.
double rope_magnitude(const RopeConfig& config);

// cos and sin for positions first .. first + count - 1: angles in double, reduced in double, rounded
// once to fp32, made on the CPU. [count, R/2] each; undefined tensors when R is 0.
struct RopeTable {
    Tensor cos, sin;
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t rotary_dim = 0;
    RopeLayout layout = RopeLayout::kHalfSplit;
};
RopeTable make_rope_table(const RopeConfig& config,
                          std::int64_t head_dim,
                          std::int64_t first,
                          std::int64_t count,
                          Device device = Device::kCpu);

}  // namespace evenkeel
