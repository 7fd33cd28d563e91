// Programs on ranks: started, looked after, ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/scale/run/run_plan.h"

namespace evenkeel::scale {

// What is to run.
struct Task {
    std::string name;  // for a queue
    std::int64_t ranks = 1;
    std::vector<std::string> arguments;  // of evenkeel
    std::string config;                  // of the model whose ranks they are
    std::string log;                     // of all that it says
    std::string result;  // the file that it leaves; an older one is removed when it is started
    std::string mark;    // a file that tells a later process of a job that may still run; "": none
    std::string settings_hash;  // a job of other settings is not taken over
    bool gpus = false;
};

class Job {
  public:
    virtual ~Job() = default;
    // "" when it has ended well, why when not; nothing while it waits or runs.
    virtual std::optional<std::string> poll() = 0;
    // Seconds since it began to run; 0 while it waits.
    virtual double seconds() const = 0;
    // Ends it.
    virtual void cancel() = 0;
};

// Throws, one sentence, where it cannot be started.
std::unique_ptr<Job> start_job(const RunPlan& plan, const Task& task);

// A program's end and all that it has said; status 127 where there is none.
struct Captured {
    int status = 0;
    std::string output, errors;  // of its two streams
};
Captured capture(const std::vector<std::string>& words,
                 const std::vector<std::string>& environment = {});  // "NAME=VALUE", on top

// What a program that failed has said last: of evenkeel's own messages the first, or else the last line with something in it;
// "" where it has said nothing.
std::string last_words(const std::string& log);

}  // namespace evenkeel::scale
