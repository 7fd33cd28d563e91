// Going back in a run, as one does to pass by the data of a loss spike (PaLM: Chowdhery et al. 2022, section 5.1).
#pragma once

#include <cstdint>
#include <string>

#include "framework/storage/checkpoint.h"

namespace evenkeel {

// Throws kConfig when the run has no checkpoint of at most `step` steps.
void check_can_rewind(const CheckpointStore& store, const std::string& run_dir, std::int64_t step);

// Makes the checkpoint of `step` the run's newest: later ones get the name
// step_00000040.rewound (.rewound.2, ..), under which nobody looks for them, and run_dir/metrics.jsonl, whose later
// records the run will drop, is copied to metrics.rewound.jsonl (.2, ..). Nothing is deleted. By the main
// rank alone.
void rewind_run(const CheckpointStore& store, const std::string& run_dir, std::int64_t step);

}  // namespace evenkeel
