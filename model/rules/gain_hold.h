// Gains of queries and keys that are held: qk_norm.gain_pull takes them a share of the way back to their first
// values at each update, qk_norm.gain_bound keeps every head's bound on its logits (attention/logit_bound.h) at most
// as large as it says, by the gains of q. Derived in docs/math.md, "Gains that are held".
//
// With a pull the first values are parameters of the model, NAME_start for each gain NAME, which are not trained:
// those that the model was initialised with or, where a run starts from weights without them, those that it read.
// Each rank holds what it has; nothing is sent.
#pragma once

#include <memory>
#include <vector>

#include "model/ops/gain_rules.h"
#include "model/rules/weight_rule.h"

namespace evenkeel {

class GainHold : public WeightRule {
  public:
    // attention: of each layer. The parameters must outlive the rule. Layers without gains are left out.
    GainHold(const std::vector<AttentionConfig>& attention,
             const std::vector<LayerWeights>& layers);

    void collect_parameters(ParameterList& list) override;
    void initialized() override;
    void loading() override;
    void loaded() override;
    void updated(const Tensor& max_logit) override;

  private:
    struct Layer {
        GainLimits limits;
        const Parameter *q, *k;
        Parameter q_start, k_start;  // without a name where there is no pull

        bool pulls() const { return limits.pull > 0.0f; }
    };
    std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace evenkeel
