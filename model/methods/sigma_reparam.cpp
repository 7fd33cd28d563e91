#include "model/rules/sigma_reparam.h"

#include "model/methods/registry.h"

namespace evenkeel {

const Method kSigmaReparam{
    "sigma_reparam",
    "linear layers multiply with gamma W / sigma(W), sigma the largest singular value",
    "Zhai et al. 2023, section 3.2",
    [](ModelConfig& config) {
        config.attention.qk_norm.kind = QkNormKind::kNone;
        config.sigma_reparam = true;
    },
    [](const ProcessGrid& grid,
       const ModelConfig& config,
       const ModelWeights& weights) -> std::unique_ptr<WeightRule> {
        if (!config.sigma_reparam) return nullptr;
        std::vector<const Parameter*> matrices;
        for (const LayerWeights& layer : weights.layers) {
            for (const Parameter* weight :
                 {layer.wq, layer.wk, layer.wv, layer.wo, layer.w_gate, layer.w_up, layer.w_down}) {
                if (weight != nullptr) matrices.push_back(weight);
            }
        }
        const bool bf16 = config.type == ComputeType::kBf16;
        return std::make_unique<SigmaReparam>(grid, matrices,
                                              bf16 ? DType::kBFloat16 : DType::kFloat32);
    }};

}  // namespace evenkeel
