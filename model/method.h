// The methods for keeping attention logits bounded, by name: a method is a set of values of ModelConfig,
// and, where it works on weights between steps, a WeightRule. Each lives in one file of model/methods/;
// methods.cpp lists them. How to add one: docs/qk_norm.md.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "model/model_config.h"
#include "model/rules/weight_rule.h"
#include "parallel/process_grid.h"

namespace evenkeel {

struct Method {
    const char* name;     // as in model.method
    const char* summary;  // one sentence, for help texts and tables
    const char* source;   // paper or code
    // Sets what the name stands for. What all methods set has its default before.
    void (*configure)(ModelConfig& config);
    // The rule that `config` asks for, whatever its method's name is; null if it asks for none. The
    // grid and the parameters outlive the rule.
    std::unique_ptr<WeightRule> (*make_rule)(const ProcessGrid& grid,
                                             const ModelConfig& config,
                                             const ModelWeights& weights) = nullptr;
};

std::span<const Method* const> methods();
// Sets a method's values, and the defaults of what it leaves open. Throws kConfig for an unknown name.
void apply_method(const std::string& name, ModelConfig& config);

}  // namespace evenkeel
