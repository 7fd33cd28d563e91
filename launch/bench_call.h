// One computation, measured for some time: what other programs that do the same can be held against.
#pragma once

#include <vector>

#include "launch/bench.h"
#include "launch/commands.h"

namespace evenkeel::bench {

struct CallResult {
    std::string shape;            // of what is computed, for people
    std::vector<double> seconds;  // of each call
    double peak_bytes = 0.0;      // resident memory that it took, inputs included
    // Of training only: of each step, those that warm up included; and what the median step comes to, 10^12 of the
    // model's operations a second.
    std::vector<double> losses;
    double tokens_per_second = 0.0, tflops_per_rank = 0.0;
};

// Growth of this process's resident memory from now on.
class MemoryGrowth {
  public:
    MemoryGrowth();
    // What has been taken and given back until now does not count.
    void forget_peak();
    double peak_bytes() const;

  private:
    double before_;
};

// Seconds of each of as many calls in a row as fill that time, one at least. With `world`, its rank 0's clock decides for
// all.
std::vector<double> times_within(double seconds, const Body& body, Communicator* world = nullptr);
// Of so many calls.
std::vector<double> times_of(std::int64_t calls, const Body& body);

void print(const CallResult& result, bool json);

}  // namespace evenkeel::bench
