// The best layout of a model on a number of GPUs: all that divide are modelled, those that do not fit are left out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scaling/memory.h"
#include "scaling/step_model.h"

namespace evenkeel::scaling {

struct Candidate {
    StepPlan plan;
    StepTime time;
    std::size_t memory = 0;  // bytes of a GPU
    double tokens_per_second() const { return plan.layout.tokens() / time.total(); }
};

struct Space {
    ModelConfig model;
    std::int64_t gpus = 0;
    std::int64_t batch =
        0;  // sequences of a step, at most: a layout takes the largest multiple of what it needs
    std::int64_t seq_len = 0;
    bool packed = false, async_checkpoints = false;  // as in StepPlan
    bool pipeline = false;                           // also layouts that evenkeel can't run
    bool across_nodes = false;  // also tensor-parallel groups of several nodes, up to 64 ranks
};

struct Found {
    // The fastest of each tensor_parallel x pipeline_parallel that fits, best first.
    std::vector<Candidate> best;
    std::int64_t tried = 0;             // layouts that divide model, batch and nodes
    std::int64_t too_large = 0;         // of these
    std::optional<Candidate> smallest;  // of these, the one that takes least
    // By tensor_parallel, where some divide and none fits: what the smallest takes.
    std::map<std::int64_t, std::size_t> smallest_of;
    std::map<std::int64_t, std::string>
        refused;  // by tensor_parallel, of those that divide gpus and suit nodes: why none was tried
};

// A layout's step and memory. Throws kConfig where it does not divide.
Candidate evaluate(const Hardware& hardware, const Shares& shares, const StepPlan& plan);

// Throws kConfig, one sentence, where there is nothing to try.
Found search(const Hardware& hardware, const Shares& shares, const Space& space);

// What one setting does: the same layout with another value of it.
struct Change {
    std::string setting;                 // "parallel.zero_stage=0"
    std::optional<Candidate> candidate;  // none where it does not divide
    bool fits = false;
};
std::vector<Change> changes_of(const Hardware& hardware,
                               const Shares& shares,
                               const Candidate& best);

}  // namespace evenkeel::scaling
