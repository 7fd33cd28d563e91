#include <cmath>

#include "model/methods/registry.h"
#include "model/rules/ngpt_weights.h"

namespace evenkeel {

const Method kNgpt{
    "ngpt",
    "hidden states, weights, q and k of unit length, logits times a learned gain and sqrt(d)",
    "Loshchilov et al. 2024, sections 2.1 to 2.6",
    [](ModelConfig& config) {
        config.architecture = Architecture::kNgpt;
        config.tied_embeddings = false;
        AttentionConfig& attention = config.attention;
        attention.softmax_scale = std::sqrt(static_cast<double>(attention.head_dim));
        QkNormConfig& norm = attention.qk_norm;
        norm.kind = QkNormKind::kL2;
        norm.gain = QkNormConfig::Gain::kPerHeadChannel;
        norm.gain_init = 1.0;
        norm.gain_unit = 1.0 / std::sqrt(static_cast<double>(config.width));
    },
    [](const ProcessGrid& grid,
       const ModelConfig& config,
       const ModelWeights& weights) -> std::unique_ptr<WeightRule> {
        if (config.architecture != Architecture::kNgpt) return nullptr;
        return std::make_unique<NgptWeights>(grid, config, weights);
    }};

}  // namespace evenkeel
