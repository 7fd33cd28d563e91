// What follows a retrofit: the run that goes on with the norm, and its control, which goes on without.
#pragma once

#include <string>
#include <vector>

#include "launch/retrofit_findings.h"
#include "launch/run_config.h"

namespace evenkeel {

// Both from the same data, seed and schedule. Paths in them are absolute.
struct Continuation {
    RunConfig retrofitted, control;
};

struct ContinuationPlan {
    std::string from;                    // the checkpoint of the model as it was
    std::string out;                     // the retrofit's directory
    std::string data;                    // to train on where the run names nothing; "": none
    std::vector<std::string> overrides;  // "key=value", of both
    int ranks = 1;                       // more than one: they share the layers of both too
};

Continuation continuation_of(const RunConfig& original,
                             const ModelConfig& retrofitted,
                             const ContinuationPlan& plan);

// Throws what `evenkeel train` would throw about either configuration, apart from data that nobody has named yet. A
// note where the run ends before the norm has come in.
void check_continuation(const Continuation& continuation, RetrofitFindings& findings);

// Notes on the steps and the learning rate of both, and on where in the data both begin.
void add_course(const Continuation& continuation,
                const ContinuationPlan& plan,
                RetrofitFindings& findings);

struct DataSeen {
    std::string path;         // of --data; "": the run's own was looked at
    bool reads_bytes = true;  // the model (saved_run.h)
};
// What to type next to train both and to compare them, and notes on the data that they train on.
void add_commands(const RunConfig& retrofitted, const DataSeen& seen, RetrofitFindings& findings);

}  // namespace evenkeel
