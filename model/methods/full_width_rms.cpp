#include "model/methods/registry.h"

namespace evenkeel {

const Method kFullWidthRms{"full_width_rms",
                           "RMSNorm over all heads of q and of k together, with gains per channel",
                           "OLMo Team 2024, OLMo 2, section 3.3.2", [](ModelConfig& config) {
                               config.attention.qk_norm.kind = QkNormKind::kRms;
                               config.attention.qk_norm.scope = QkNormConfig::Scope::kFullWidth;
                           }};

}  // namespace evenkeel
