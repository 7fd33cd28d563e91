#include "model/methods/registry.h"

namespace evenkeel {

const Method kOffByOne{"off_by_one", "softmax with 1 added to its denominator: a sink fixed at 0",
                       "Miller 2023, Attention is off by one", [](ModelConfig& config) {
                           config.attention.qk_norm.kind = QkNormKind::kNone;
                           config.attention.sink = AttentionConfig::Sink::kOffByOne;
                       }};

}  // namespace evenkeel
