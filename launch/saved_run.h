// A run directory as train leaves it: config.json, metrics.jsonl, summary.json, checkpoints/, report.html.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/run_config.h"

namespace evenkeel {

struct SavedRun {
    std::string directory;   // of the run
    std::string checkpoint;  // the one to load
    std::int64_t step = 0;
    RunConfig config;  // as saved, with overrides
};

// path: a run directory (its newest checkpoint is taken) or a checkpoint inside one. Throws kIo naming
// what is missing. The grid is fitted to world_size ranks unless an override sets a parallel.* key.
SavedRun open_saved_run(const std::string& path,
                        const std::vector<std::string>& overrides,
                        int world_size);

// Text of unknown bytes made fit for a terminal or a page: invalid UTF-8 and control characters other
// than newline and tab are replaced by U+FFFD.
std::string printable(const std::string& text);

// "3,412,224".
std::string grouped(std::int64_t value);
// "%.4g" and the like, for one number.
std::string format(const char* pattern, double value);

}  // namespace evenkeel
