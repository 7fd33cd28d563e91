// Runs the built program as a user would.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace evenkeel::testing {

struct Outcome {
    int status = -1;     // exit status, or 128 + signal
    std::string output;  // both streams
};

// Runs a shell command with a time limit (status 124 when it is exceeded).
Outcome run_command(const std::string& command, int limit_seconds = 60);
// Runs the evenkeel program: run_evenkeel("train --config x.json").
Outcome run_evenkeel(const std::string& arguments, int limit_seconds = 60);

// What a command says when it refuses.
struct Refusal {
    int status;
    std::vector<std::string> words;
};
void expect_refusal(const Outcome& outcome, const Refusal& refusal);

// Runs a study with its files in `directory`; returns its results.json.
nlohmann::json results_of(const std::string& study,
                          const std::string& directory,
                          const std::string& settings = "");

// Opens a page in chromium without a window; the output is its console's messages and the page as it stands when all
// scripts have run.
Outcome open_page(const TemporaryDirectory& home, const std::string& page);
// How often `what` is in `text`.
int count_of(const std::string& what, const std::string& text);

// A configuration that trains in a fraction of a second, and its text. `run` is the run directory.
class TinyRun {
  public:
    TinyRun();
    // "train --config FILE --set trainer.run_dir=RUN" and more settings.
    std::string train(const std::string& settings = "") const;
    // The directory of the checkpoint of one of the first nine steps.
    std::string checkpoint(int step) const;

    TemporaryDirectory directory;
    std::string text, config, run;
};

}  // namespace evenkeel::testing
