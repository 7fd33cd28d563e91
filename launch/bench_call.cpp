#include "launch/bench_call.h"

#include <algorithm>
#include <iostream>

#include "framework/json.h"
#include "launch/saved_run.h"

namespace evenkeel::bench {

MemoryGrowth::MemoryGrowth() {
    reset_peak_resident();
    before_ = peak_resident_bytes();
}

void MemoryGrowth::forget_peak() { reset_peak_resident(); }

double MemoryGrowth::peak_bytes() const { return peak_resident_bytes() - before_; }

std::vector<double> times_within(double seconds, const Body& body, Communicator* world) {
    std::vector<double> times;
    double left = seconds;
    for (bool ends = false; !ends;) {
        times.push_back(seconds_of(body, 1));
        left -= times.back();
        ends = !(left > 0.0);  // also where seconds are no number
        if (world == nullptr || world->size() == 1) continue;
        const bool decides = world->rank() == 0;
        ends = world->all_reduce_scalar(decides && ends ? 1.0 : 0.0, ReduceOp::kMax) > 0.0;
    }
    return times;
}

std::vector<double> times_of(std::int64_t calls, const Body& body) {
    std::vector<double> times;
    for (std::int64_t i = 0; i < calls; ++i) times.push_back(seconds_of(body, 1));
    return times;
}

void print(const CallResult& result, bool json) {
    const double middle = median(result.seconds);
    const double fastest = *std::min_element(result.seconds.begin(), result.seconds.end());
    if (json) {
        nlohmann::ordered_json out = {{"seconds", middle},
                                      {"fastest", fastest},
                                      {"calls", result.seconds.size()},
                                      {"peak_bytes", result.peak_bytes}};
        if (!result.losses.empty()) {
            out["tokens_per_second"] = result.tokens_per_second;
            out["tflops_per_rank"] = result.tflops_per_rank;
            out["losses"] = result.losses;
        }
        std::cout << out.dump() << "\n";
        return;
    }
    std::cout << "shape    " << result.shape << "\ncalls    " << result.seconds.size()
              << ", the median " << format("%.4g ms", 1e3 * middle) << ", the fastest "
              << format("%.4g ms", 1e3 * fastest) << "\nmemory   "
              << format("%.1f MiB", result.peak_bytes / (1 << 20)) << " at the peak\n";
    if (result.losses.empty()) return;
    std::cout << "rate     " << format("%.0f tokens/s, ", result.tokens_per_second)
              << format("%.3g TFLOP/s a rank\n", result.tflops_per_rank) << "loss     "
              << format("%.4f", result.losses.front()) << " at first, "
              << format("%.4f", result.losses.back()) << " at last\n";
}

}  // namespace evenkeel::bench
