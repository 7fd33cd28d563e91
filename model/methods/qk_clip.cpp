#include <algorithm>
#include <utility>

#include "model/methods/registry.h"
#include "model/ops/logit_clip.h"
#include "model/telemetry/head_tables.h"

namespace evenkeel {
namespace {

// After the optimizer's step, brings each head whose largest logit in that step was S > threshold back to it: W_q
// and W_k, with their biases, take the root of threshold / S each. Query heads of one key head go together by the largest S of
// them, since they share W_k. Where a norm would undo that, the gains are scaled in place of the weights. Every rank
// scales what it holds; ranks that hold the same key head see the same S. A step that made no update clips nothing.
class QkClip : public WeightRule {
  public:
    QkClip(const ProcessGrid& grid, const AttentionConfig& config, const ModelWeights& weights)
        : grid_(grid),
          config_(config),
          groups_(Tensor::uninitialized(
              {static_cast<std::int64_t>(weights.layers.size()),
               std::max<std::int64_t>(config.num_kv_heads / grid.tp_size(), 1)},
              DType::kFloat32,
              grid.device())),
          counts_(Tensor::zeros(groups_.shape(), DType::kFloat32, grid.device())) {
        for (const LayerWeights& layer : weights.layers) {
            // A logit is a product of what weights and biases make together.
            Clipped clipped{{layer.q_gain, layer.k_gain},
                            config.qk_norm.gain_offset * config.qk_norm.gain_unit};
            if (layer.q_gain == nullptr) {
                clipped = {{layer.wq, layer.wk}, 0.0};
                if (layer.wq_bias != nullptr) {
                    clipped.parameters.insert(clipped.parameters.end(),
                                              {layer.wq_bias, layer.wk_bias});
                }
            }
            layers_.push_back(std::move(clipped));
        }
    }

    void collect_parameters(ParameterList& list) override {
        for (const Clipped& layer : layers_) {
            for (const Parameter* parameter : layer.parameters) {
                declaration_of(list, parameter).whole_state = true;
            }
        }
    }

    bool needs_max_logit() const override { return true; }

    void updated(const Tensor& max_logit) override {
        group_maximum(max_logit, groups_);
        grid_.data().all_reduce(groups_, ReduceOp::kMax);
        grid_.kv_replicas(config_.num_kv_heads).all_reduce(groups_, ReduceOp::kMax);
        count_clipped(groups_, config_.qk_clip_threshold, counts_);
        for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
            const auto at = static_cast<std::int64_t>(layer);
            const Tensor maximum = groups_.slice(0, at, at + 1).view({groups_.size(1)});
            for (const Parameter* parameter : layers_[layer].parameters) {
                clip_heads(maximum, config_.qk_clip_threshold, layers_[layer].offset, *parameter);
            }
        }
    }

    // Query heads of one key head are clipped together.
    std::vector<MetricTable> head_metrics() override {
        const Tensor counts = counts_.to(Device::kCpu).clone();
        counts_.zero();
        const std::int64_t layers = counts.size(0), groups = counts.size(1);
        const std::int64_t heads = config_.num_heads / grid_.tp_size();
        const Tensor of_heads = Tensor::uninitialized({1, layers, heads}, DType::kFloat32);
        for (std::int64_t i = 0; i < layers * heads; ++i) {
            of_heads.data<float>()[i] =
                counts.data<float>()[i / heads * groups + i % heads / (heads / groups)];
        }
        return gather_heads(grid_, {"clipped"}, of_heads);
    }

  private:
    // What a layer's heads are scaled by.
    struct Clipped {
        std::vector<const Parameter*> parameters;
        double offset;  // of gains
    };
    const ProcessGrid& grid_;
    AttentionConfig config_;
    std::vector<Clipped> layers_;
    Tensor groups_;  // [L, K/P]: the largest logit of a key head's query heads
    Tensor counts_;  // [L, K/P]: updates that were clipped since head_metrics()
};

}  // namespace

const Method kQkClip{
    "qk_clip", "W_q and W_k of a head scaled down after a step in which its logits passed 100",
    "Kimi Team 2025, Kimi K2, section 2.1",
    [](ModelConfig& config) {
        config.attention.qk_norm.kind = QkNormKind::kNone;
        config.attention.qk_clip_threshold = 100.0;
    },
    [](const ProcessGrid& grid,
       const ModelConfig& config,
       const ModelWeights& weights) -> std::unique_ptr<WeightRule> {
        if (config.attention.qk_clip_threshold <= 0.0) return nullptr;
        return std::make_unique<QkClip>(grid, config.attention, weights);
    }};

}  // namespace evenkeel
