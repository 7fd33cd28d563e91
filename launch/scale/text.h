// What the commands of `evenkeel scale` share: reading a run as a plan, numbers as text, a step as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launch/run_config.h"
#include "launch/scale/command.h"
#include "scaling/failures.h"
#include "scaling/measured_network.h"
#include "scaling/search.h"

namespace evenkeel::scale {

// The configuration for GPUs, whatever its device; --batch and --gpus put in. Not validated.
RunConfig configuration(const ScaleCommand& command);
// The number of GPUs: --gpus, or what the configuration asks for. Throws kConfig where there is none or that is not
// positive.
std::int64_t gpus_of(const ScaleCommand& command, const RunConfig& config);
// --tokens, checked; 0 where there is none.
double tokens_of(const ScaleCommand& command);
// --hardware, with the network of --network in it.
struct Cluster {
    scaling::Hardware hardware;
    std::string network_file;  // "": the description's
    scaling::MeasuredNetwork network;
};
Cluster cluster_of(const ScaleCommand& command);
// A line that names a measured network, what of it is used, and one for each doubt of it; "" without one.
std::string network_text(const Cluster& cluster);
// null without a measured network.
nlohmann::ordered_json to_json(const Cluster& cluster);
// evenkeel's way to train it on that many GPUs.
scaling::StepPlan plan_of(const RunConfig& config, std::int64_t gpus);

// "tensor parallel 4 x data parallel 2", and stages where there are any.
std::string layout_text(const scaling::Layout& layout);
// "sequence parallel, optimizer cut, recompute full, 8 micro-batches of 2".
std::string settings_text(const scaling::Layout& layout);
// The settings as --set options.
std::string set_options(const scaling::Layout& layout);

std::string seconds_text(double seconds);   // "1.23 s", "12.3 ms"
std::string duration_text(double seconds);  // "43.2 days", "5.1 hours", "20 min"
std::string count_text(double count);       // "15 T", "1.05 M"
std::string percent_text(double share);     // "12.3 %"
std::string number(const char* format, double value);

// Parts of a step that are not 0, as they are called.
std::vector<std::pair<std::string, double>> parts_of(const scaling::StepTime& time);

nlohmann::ordered_json to_json(const scaling::StepTime& time);
nlohmann::ordered_json to_json(const scaling::Layout& layout);

// How much longer published steps took than modelled: least, median, most (published / predicted - 1).
struct Gap {
    double least = 0.0, median = 0.0, most = 0.0;
};
Gap published_gap();
std::string to_text(const Gap& gap);

// A run of that many tokens; checkpoint_interval: steps between checkpoints, 0 for the best.
struct Budget {
    double tokens = 0.0, seconds = 0.0;  // failures and checkpoints included
    scaling::LongRun run;
};
Budget budget_of(const scaling::Hardware& hardware,
                 const scaling::StepPlan& plan,
                 double step_seconds,
                 double tokens,
                 std::int64_t checkpoint_interval = 0);

}  // namespace evenkeel::scale
