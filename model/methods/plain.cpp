#include "model/methods/registry.h"

namespace evenkeel {

const Method kPlain{"plain", "scaled dot products, nothing bounds the logits",
                    "Vaswani et al. 2017, eq. 1",
                    [](ModelConfig& config) { config.attention.qk_norm.kind = QkNormKind::kNone; }};

}  // namespace evenkeel
