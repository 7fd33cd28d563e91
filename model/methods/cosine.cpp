#include "model/methods/registry.h"

namespace evenkeel {

const Method kCosine{"cosine",
                     "cosines of q and k over a temperature for each head, learned as a logarithm",
                     "Liu et al. 2022, Swin Transformer V2, section 3.2", [](ModelConfig& config) {
                         QkNormConfig& norm = config.attention.qk_norm;
                         norm.kind = QkNormKind::kL2;
                         norm.gain = QkNormConfig::Gain::kPerHeadScalar;
                         norm.gain_form = QkNormConfig::GainForm::kExponential;
                         norm.gain_init = 10.0;    // as in its released code
                         norm.gain_limit = 100.0;  // temperatures stay above 0.01
                     }};

}  // namespace evenkeel
