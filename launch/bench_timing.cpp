// Timing in turn, rounds that end in time, and what is made of their figures.
#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

#include "framework/log.h"
#include "launch/bench.h"
#include "launch/saved_run.h"

namespace evenkeel::bench {
namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// The value below which that part of the sorted ones lies.
double quantile(const std::vector<double>& sorted, double part) {
    const double at = part * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Rounds::Rounds(
    std::string what, int wanted, double seconds, Communicator* world, std::ostream* progress)
    : what_(std::move(what)),
      wanted_(wanted),
      seconds_(seconds),
      world_(world),
      progress_(progress != nullptr ? progress : &std::cerr),
      start_(now()),
      last_line_(start_) {}

bool Rounds::next() {
    constexpr double kQuiet = 2.0;  // seconds
    constexpr int kLeast = 3;
    const double time = now();
    const double taken = time - start_;
    const bool is_late = taken >= seconds_ && (done_ >= kLeast || taken >= 2.0 * seconds_);
    bool ends = done_ >= wanted_ || (done_ >= 1 && is_late);
    // One rank's clock decides for all.
    if (world_ != nullptr) {
        const bool decides = world_->rank() == 0;
        ends = world_->all_reduce_scalar(decides && ends ? 1.0 : 0.0, ReduceOp::kMax) > 0.0;
    }
    const bool speaks = world_ == nullptr || world_->rank() == 0;
    if (speaks && ends && done_ < wanted_) {
        *progress_ << concat("  ", what_, ": ends after ", done_, " of ", wanted_, " rounds, ")
                   << format("%.0f s", taken) << std::endl;
    } else if (speaks && !ends && time - last_line_ >= kQuiet) {
        last_line_ = time;
        *progress_ << concat("  ", what_, ": ", done_, " of ", wanted_, " rounds after ")
                   << format("%.0f s", taken) << std::endl;
    }
    if (!ends) ++done_;
    return !ends;
}

double seconds_of(const Body& body, int calls) {
    const double start = now();
    for (int i = 0; i < calls; ++i) body();
    return (now() - start) / calls;
}

Times time_in_turn(const std::string& what,
                   const std::vector<Body>& bodies,
                   int wanted,
                   double seconds,
                   double (*timer)(const Body&, int)) {
    constexpr double kLimit = 12.0;
    Rounds rounds(what, wanted, kLimit);
    std::vector<int> calls;
    for (const Body& body : bodies) {
        body();
        const double once = std::max(timer(body, 1), 1e-9);
        calls.push_back(static_cast<int>(std::clamp(seconds / once, 1.0, 1e6)));
    }
    Times times(bodies.size());
    while (rounds.next()) {
        for (std::size_t i = 0; i < bodies.size(); ++i) {
            times[i].push_back(timer(bodies[i], calls[i]));
        }
    }
    return times;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return quantile(values, 0.5);
}

std::vector<double> ratios_of(const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
    return ratios;
}

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
    return median(ratios_of(a, b));
}

Share share_of_rounds(
    std::vector<double> ratios, const std::string& of, double goal, bool at_most, double factor) {
    for (double& ratio : ratios) ratio *= factor;
    std::sort(ratios.begin(), ratios.end());
    Share share{quantile(ratios, 0.5), of, goal, at_most};
    share.low = quantile(ratios, 0.25);
    share.high = quantile(ratios, 0.75);
    share.rounds = static_cast<int>(ratios.size());
    return share;
}

PinnedThreads::PinnedThreads() {
    cpu_set_t allowed;
    if (omp_get_proc_bind() != omp_proc_bind_false) return;  // the user has chosen
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    if (CPU_COUNT(&allowed) < omp_get_max_threads()) return;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &allowed)) cores_.push_back(core);
    }
#pragma omp parallel
    {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cores_[static_cast<std::size_t>(omp_get_thread_num())], &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }
}

PinnedThreads::~PinnedThreads() {
    if (cores_.empty()) return;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    for (const int core : cores_) CPU_SET(core, &allowed);
#pragma omp parallel
    pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed);
}

}  // namespace evenkeel::bench
