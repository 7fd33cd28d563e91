// What a method does to a model's weights outside of its passes: between backward and the optimizer, and
// between the optimizer and the next forward.
//
// L layers, H query heads, P tensor-parallel size.
#pragma once

#include <algorithm>
#include <vector>

#include "framework/parameter.h"
#include "framework/training/metrics.h"

namespace evenkeel {

// One decoder block's weights, this rank's shards. Null where the block has no such weight.
struct LayerWeights {
    const Parameter *wq = nullptr, *wk = nullptr, *wv = nullptr, *wo = nullptr;
    const Parameter *wq_bias = nullptr, *wk_bias = nullptr;
    const Parameter *q_gain = nullptr, *k_gain = nullptr;
    const Parameter *w_gate = nullptr, *w_up = nullptr, *w_down = nullptr;
};

struct ModelWeights {
    const Parameter* embedding = nullptr;
    const Parameter* output = nullptr;  // null when tied to the embedding
    std::vector<LayerWeights> layers;
};

// The list's entry of one of these weights, for what a rule has to say in its declaration.
inline Parameter& declaration_of(const ParameterList& list, const Parameter* weight) {
    const auto found = std::find(list.begin(), list.end(), weight);
    EVENKEEL_CHECK(found != list.end(), "WeightRule", weight->name,
                   ": not among the model's parameters");
    return **found;
}

// All calls are collective over the model's ranks and wait for nothing on CUDA, but for those at the
// start (initialized, loaded).
class WeightRule {
  public:
    virtual ~WeightRule() = default;

    // Adds the rule's own parameters, if it has any, to the model's; may change what those of the model
    // declare (weight_decay, derived_value, and whole_state where it touches master or gradient). Called once, before
    // parameters have memory.
    virtual void collect_parameters(ParameterList&) {}
    // All weights have their first values.
    virtual void initialized() {}
    // Parameters are about to be read from a checkpoint. Those that may be missing there (Parameter::optional) keep
    // what the rule sets now.
    virtual void loading() {}
    // All weights and the rule's parameters have been read from a checkpoint.
    virtual void loaded() {}
    // Every gradient of a step is complete, reduced over all ranks; the rule may change it. Called within
    // the passes that a model may record and replay: the same memory and work every time.
    virtual void gradients_complete() {}
    // The optimizer has made its step. max_logit [L, H/P] fp32 on the model's device: the largest logit of
    // each head of this rank in the step's forward passes over this rank's data; undefined unless
    // needs_max_logit.
    virtual void updated(const Tensor& max_logit) { static_cast<void>(max_logit); }
    virtual bool needs_max_logit() const { return false; }
    // Tables of what the rule has done since they were asked for last, the heads of all ranks. The host waits.
    virtual std::vector<MetricTable> head_metrics() { return {}; }
};

}  // namespace evenkeel
