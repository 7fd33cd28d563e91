#include "model/methods/registry.h"

namespace evenkeel {

// Weight decay draws such gains to 1, not to 0.
const Method kRmsZeroCentred{
    "rms_zero_centred", "RMSNorm on q and k of each head, with gains 1 + w that start at w = 0",
    "Gemma Team 2025, Gemma 3, section 2 (code)", [](ModelConfig& config) {
        config.attention.qk_norm.kind = QkNormKind::kRms;
        config.attention.qk_norm.gain_offset = 1.0;
    }};

}  // namespace evenkeel
