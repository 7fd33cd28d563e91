// What the measurements of `evenkeel bench` share. A machine's speed drifts, so everything that is
// divided by one another is timed in turn, round by round, and the median of the rounds' ratios is shown.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace evenkeel::bench {

struct Share {
    double ratio = 0.0;
    std::string of;     // "of bf16 GEMM"
    double goal = 0.0;  // 0: none
    bool at_most = false;
};

struct Line {
    std::string name;
    double value = 0.0;
    std::string unit;  // "GFLOP/s", "GB/s", "ms", "MiB"
    std::vector<Share> shares;
};
using Lines = std::vector<Line>;

// Seconds of one call, [body][round]. Each body runs once unmeasured, then in every round as often as
// fills `seconds`.
std::vector<std::vector<double>> time_in_turn(const std::vector<std::function<void()>>& bodies,
                                              int rounds,
                                              double seconds = 0.05);
double median(std::vector<double> values);
// Median over rounds of a / b.
double median_ratio(const std::vector<double>& a, const std::vector<double>& b);

// A square product of the machine's matrix library, the yardstick: oneDNN called directly, bf16 or fp32.
class YardstickGemm {
  public:
    explicit YardstickGemm(bool bf16);
    ~YardstickGemm();
    void run() const;
    double flops() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

Lines measure_gemm();
Lines measure_attention();
Lines measure_norm();
Lines measure_memory();
Lines measure_step();
// Two ranks against one rank with two threads; collective over two ranks. Rank 0 has the result.
Lines measure_ranks(Communicator& world);

}  // namespace evenkeel::bench
