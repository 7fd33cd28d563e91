// What follows a retrofit: the run that goes on with the norm, and its control, which goes on without.
#pragma once

#include <string>
#include <vector>

#include "launch/retrofit_findings.h"
#include "launch/run_config.h"

namespace evenkeel {

// Both from the same text, seed and schedule. Paths in them are absolute.
struct Continuation {
    RunConfig retrofitted, control;
};

struct ContinuationPlan {
    std::string from;                    // the checkpoint of the model as it was
    std::string out;                     // the retrofit's directory
    std::string data;                    // a text; "": the run's own
    std::vector<std::string> overrides;  // "key=value", of both
    int ranks = 1;                       // more than one: they share the layers of both too
};

Continuation continuation_of(const RunConfig& original,
                             const ModelConfig& retrofitted,
                             const ContinuationPlan& plan);

// What to type next to train both and to compare them, or a note that says why that cannot be.
void add_commands(const RunConfig& retrofitted, bool reads_bytes, RetrofitFindings& findings);

}  // namespace evenkeel
