#include "model/methods/registry.h"

namespace evenkeel {

const Method kSink{"sink", "a learned logit for each head that takes weight and returns nothing",
                   "OpenAI 2025, gpt-oss (code)", [](ModelConfig& config) {
                       config.attention.qk_norm.kind = QkNormKind::kNone;
                       config.attention.sink = AttentionConfig::Sink::kLearned;
                   }};

}  // namespace evenkeel
