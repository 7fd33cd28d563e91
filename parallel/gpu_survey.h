// The first half of assign_gpu(), for who wants to know and not to be refused.
#pragma once

#include <vector>

#include "parallel/gpu_assignment.h"

namespace evenkeel {

// Takes a GPU for this rank as assign_gpu() does, described in `mine`, and tells of the GPUs of all ranks;
// find_problem() judges. Collective.
std::vector<RankOnGpu> survey_gpus(Communicator& world,
                                   Communication communication,
                                   GpuAssignment& mine);

}  // namespace evenkeel
