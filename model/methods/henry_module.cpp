#include "model/methods/henry.h"
#include "model/methods/registry.h"

namespace evenkeel {

const Method kHenryModule{
    "henry_module", "q and k of unit length, times a learned g that a layer's heads share",
    "Henry et al. 2020, section 3, as in its released code", [](ModelConfig& config) {
        QkNormConfig& norm = config.attention.qk_norm;
        norm.kind = QkNormKind::kL2;
        norm.gain = QkNormConfig::Gain::kScalar;
        norm.gain_init = henry_first_gain(config.max_seq_len);
    }};

}  // namespace evenkeel
