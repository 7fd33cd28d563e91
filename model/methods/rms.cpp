#include "model/methods/registry.h"

namespace evenkeel {

const Method kRms{"rms", "RMSNorm on q and k of each head, with gains per head and channel",
                  "Zhang and Sennrich 2019, eq. 4; Wortsman et al. 2023, section 3.1",
                  [](ModelConfig& config) { config.attention.qk_norm.kind = QkNormKind::kRms; }};

}  // namespace evenkeel
