// What a configuration or a command line leaves unsaid, or says without effect, and what is then done.
#pragma once

#include <string>
#include <vector>

#include "launch/run_config.h"

namespace evenkeel {

// The schedule of a run that goes on from a model of others, who do not say how it was trained: a peak that does a
// trained model of any size little harm.
ScheduleConfig schedule_of_import();
// Whether the weights in a run, a checkpoint or a Hugging Face folder are of no training that is known here.
bool is_trained_elsewhere(const std::string& path);
// "200 steps of 16 sequences of 256 tokens, schedule.peak_lr 1e-05": what a run is asked to do.
std::string course_of(const RunConfig& config);
// What to say of a learning rate that nobody has chosen for such weights; "" where there is nothing to say.
std::string untold_rate(const RunConfig& config);

// The overrides that a later one of model.method takes back, "model.attention.softcap=30"; "" if there are none.
std::string undone_by_method(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace evenkeel
