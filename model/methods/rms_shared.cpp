#include "model/methods/registry.h"

namespace evenkeel {

const Method kRmsShared{
    "rms_shared", "RMSNorm on q and k of each head, with gains per channel that all heads share",
    "Wortsman et al. 2023, section 3.2.5; Qwen Team 2025, Qwen3, section 2",
    [](ModelConfig& config) {
        config.attention.qk_norm.kind = QkNormKind::kRms;
        config.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
    }};

}  // namespace evenkeel
