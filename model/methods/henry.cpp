#include "model/methods/henry.h"

#include <cmath>

#include "model/methods/registry.h"

namespace evenkeel {

double henry_first_gain(std::int64_t max_seq_len) {
    const auto length = static_cast<double>(max_seq_len);
    // A sequence of one token has no other keys to tell apart.
    return length < 2.0 ? 1.0 : std::log2(length * length - length);
}

const Method kHenry{"henry", "q and k of unit length, times a learned g for each head",
                    "Henry et al. 2020, section 3", [](ModelConfig& config) {
                        QkNormConfig& norm = config.attention.qk_norm;
                        norm.kind = QkNormKind::kL2;
                        norm.gain = QkNormConfig::Gain::kPerHeadScalar;
                        norm.gain_init = henry_first_gain(config.max_seq_len);
                    }};

}  // namespace evenkeel
