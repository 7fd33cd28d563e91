// A QK-norm that comes in by and by: lambda of qk_norm_rope.h and gain.h goes from 0 to 1 over
// qk_norm.anneal_steps updates, min(1, updates / anneal_steps). At 0 the model is the one without the norm, bit for
// bit; at 1 it is the one with it. (docs/math.md, "A norm that comes in by and by".)
//
// The number of updates is a parameter of the model, "qk_norm_anneal" [1], which is not trained, so that whoever loads
// a checkpoint gets the function that was trained. Every call that follows a step counts, also one in which a number
// was not finite and nothing else changed; no count is more than anneal_steps.
#pragma once

#include "model/rules/weight_rule.h"
#include "parallel/process_grid.h"

namespace evenkeel {

class QkNormAnneal : public WeightRule {
  public:
    // The grid must outlive the rule.
    QkNormAnneal(const ProcessGrid& grid, std::int64_t steps);

    // [1] fp32 on the grid's device; changes after each update, for TensorParallelAttention::set_lambda.
    const Tensor& lambda() const { return lambda_; }

    void collect_parameters(ParameterList& list) override;
    void initialized() override;
    void loading() override;
    void loaded() override;  // throws kIo when the number that was loaded is none of updates
    void updated(const Tensor& max_logit) override;

  private:
    std::int64_t steps_;
    Parameter updates_;
    Tensor lambda_;
};

}  // namespace evenkeel
