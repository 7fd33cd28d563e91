// Alpha and beta of the collectives' model, from measured times.
//
// The model is that of collectives.h, so a fit is of what the step model computes: with alpha seconds a message, b bytes
// a second and c seconds a collective, each form of a collective takes c + S alpha + F n / b, and the fastest form counts.
// In (c, alpha, 1/b) a form is linear. Points are given the form that is fastest for them, and the numbers follow by least
// squares of the relative error (predicted / measured - 1) with none below 0, in turn until the forms stay.
//
// Robust: first least absolute errors, which a few wild points do not move, then least squares with Tukey's biweight
// (Beaton, Tukey 1974), its scale the median absolute error: points beyond 4.685 scales count nothing. For
// this an error is relative to the larger of predicted and measured, so wild points pull alike on both sides.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scaling/collectives.h"

namespace evenkeel::scaling {

enum class Operation { kAllReduce, kReduceScatter, kAllGather, kBroadcast };
inline constexpr Operation kOperations[] = {Operation::kAllReduce, Operation::kReduceScatter,
                                            Operation::kAllGather, Operation::kBroadcast};
const char* name_of(Operation operation);  // "all_reduce"

// As the step model counts it (all_reduce_seconds, half_seconds with its ring); a broadcast, which a step has none of, is
// broadcast_seconds.
double collective_seconds(const Network& network,
                          Operation operation,
                          const Group& group,
                          double bytes);

// bytes: of the whole vector, as in collectives.h.
struct TimedCollective {
    Operation operation = Operation::kAllReduce;
    Group group;
    double bytes = 0.0, seconds = 0.0;
};

struct AlphaBeta {
    Link link;                  // of all messages of that group, as if it lay on one node
    double error = 0.0;         // median of |predicted / measured - 1| over the points of the fit
    std::int64_t left_out = 0;  // points that count nothing
};
// One operation on one group. Nothing when the times do not grow with the bytes, or there are fewer than 3 points.
std::optional<AlphaBeta> fit_link(std::span<const TimedCollective> points);
// What that fit says of a size.
double predicted_seconds(const AlphaBeta& fit,
                         Operation operation,
                         const Group& group,
                         double bytes);

// One network for all: alpha and b of both links and c, from the operations that the step model has, over the groups that
// lie within a node or have one rank a node. A link that none of them goes through, or whose
// times do not grow with the bytes, has infinite bandwidth. Where c and the
// latencies can't be told apart, c is 0 and they hold it.
struct NetworkFit {
    Network network;
    double error = 0.0;
    std::int64_t points = 0, left_out = 0;
};
std::optional<NetworkFit> fit_network(std::span<const TimedCollective> points);

}  // namespace evenkeel::scaling
