#include "model/methods/registry.h"

namespace evenkeel {

const Method kLayerNorm{
    "layer_norm", "LayerNorm without bias on q and k of each head, with gains per head and channel",
    "Dehghani et al. 2023, ViT-22B, section 2; gains per head as in Command R+ (code)",
    [](ModelConfig& config) { config.attention.qk_norm.kind = QkNormKind::kLayerNorm; }};

}  // namespace evenkeel
