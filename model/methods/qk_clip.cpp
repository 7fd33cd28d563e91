#include "model/methods/registry.h"

namespace evenkeel {

const Method kQkClip{
    "qk_clip", "W_q and W_k of a head scaled down after a step in which its logits passed 100",
    "Kimi Team 2025, Kimi K2, section 2.1", [](ModelConfig& config) {
        config.attention.qk_norm.kind = QkNormKind::kNone;
        config.attention.qk_clip_threshold = 100.0;
    }};

}  // namespace evenkeel
