// Collectives measured as nccl-tests measures them: time, algorithm and bus bandwidth, and whether the result is right.
//
// Size is of the whole vector (all-gather: of the output; reduce-scatter: of the input), fp32. Algorithm bandwidth is
// size / time; bus bandwidth that times 2 (p-1)/p for all-reduce, (p-1)/p for reduce-scatter and all-gather, 1 for
// broadcast (NVIDIA/nccl-tests, doc/PERFORMANCE.md): what a link carries, whatever the number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "scaling/alpha_beta_fit.h"

namespace evenkeel::scaling {

struct MeasureSettings {
    std::int64_t from = 1024, to = 16 << 20;  // bytes, each size twice the one before
    int rounds = 9;                           // each a series of calls between two barriers
    double seconds = 0.002;                   // that a series fills, at least one call
    // Throws kConfig naming the option.
    void validate() const;
};

// Times are of the slowest rank of the job: groups of one axis run at the same time, as they do in training.
struct Measurement {
    Operation operation = Operation::kAllReduce;
    std::int64_t bytes = 0;  // rounded up to whole elements a rank
    // Of one call: median of the rounds, and first and third quartile.
    double seconds = 0.0, low = 0.0, high = 0.0;
    double algorithm_bandwidth = 0.0, bus_bandwidth = 0.0;  // bytes a second
    std::int64_t wrong = 0;  // elements over all ranks, before and after the series
    bool held_out = false;   // from the fit
};

// One operation on one kind of group.
struct Series {
    std::string group;  // "tensor", "data", "world"
    Group place;        // of this rank's group
    bool even = true;   // over nodes; else `place` has the ranks as one node, and fits no network
    std::vector<Measurement> sizes;

    // Those that the fit is of, or those held out.
    std::vector<TimedCollective> points(bool held_out) const;
};

double bus_factor(Operation operation, std::int64_t ranks);

// All operations on `group`. Collective over `world`, a group for the CPU that holds all ranks of all groups of this
// kind; it carries clocks and counts, so that a group that is broken can't hide it. Every third size but the first two and
// the last two is held out. A collective of less than 2 ranks has no series.
std::vector<Series> measure_collectives(Communicator& group,
                                        const std::string& name,
                                        Communicator& world,
                                        const MeasureSettings& settings);

// Median and largest |predicted / measured - 1| of the points, by the fit; 0 without points.
struct FitError {
    double median = 0.0, largest = 0.0;
};
FitError error_of(const AlphaBeta& fit, const std::vector<TimedCollective>& points);
FitError error_of(const Network& network, const std::vector<TimedCollective>& points);

}  // namespace evenkeel::scaling
