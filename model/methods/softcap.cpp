#include "model/methods/registry.h"

namespace evenkeel {

const Method kSoftcap{"softcap", "logits s become 50 tanh(s / 50), inside attention",
                      "Gemma Team 2024, Gemma 2, section 2", [](ModelConfig& config) {
                          config.attention.qk_norm.kind = QkNormKind::kNone;
                          config.attention.softcap = 50.0;
                      }};

}  // namespace evenkeel
