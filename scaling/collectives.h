// What a collective costs, in the alpha-beta model: a message of n bytes takes alpha + n / b seconds.
//
// p ranks, alpha seconds of latency a message, b bytes a second that a rank sends in one direction, n bytes: of the
// vector that all ranks hold in the end (all-reduce, all-gather) or held at first (reduce-scatter). Adding numbers up
// is not counted beside sending them: GPUs do it at the speed of their memory.
// Sources: Thakur, Rabenseifner, Gropp 2005 (Optimization of collective communication operations in MPICH, section 4);
// Patarasuk, Yuan 2009 (Bandwidth optimal all-reduce algorithms for clusters of workstations);
// Sanders, Speck, Traeff 2009 (Two-tree algorithms for full bandwidth broadcast, reduction and scan).
#pragma once

#include <cstdint>

#include "scaling/hardware.h"

namespace evenkeel::scaling {

struct Link {
    double latency = 0.0;    // alpha, seconds
    double bandwidth = 0.0;  // b, bytes a second
};

// Ring: a reduce-scatter of p - 1 messages of n/p bytes, and an all-gather of as many.
//   2 (p-1)/p n/b + 2 (p-1) alpha
double ring_all_reduce_seconds(const Link& link, std::int64_t ranks, double bytes);
// One half of it, reduce-scatter or all-gather: (p-1)/p n/b + (p-1) alpha.
double ring_half_seconds(const Link& link, std::int64_t ranks, double bytes);
// Two binary trees, each for half of the vector, pipelined: every rank sends what it has twice, after the depth of the
// trees.  2 n/b + 2 ceil(log2 p) alpha
double tree_all_reduce_seconds(const Link& link, std::int64_t ranks, double bytes);
// Recursive halving or doubling, one half of an all-reduce: (p-1)/p n/b + ceil(log2 p) alpha.
double halving_half_seconds(const Link& link, std::int64_t ranks, double bytes);
// A broadcast along a chain, in pieces so small that all links are busy at once: n/b + (p-1) alpha.
double chain_broadcast_seconds(const Link& link, std::int64_t ranks, double bytes);

// Ranks that lie `per_node` on each of `nodes` nodes.
struct Group {
    std::int64_t per_node = 1;
    std::int64_t nodes = 1;
    std::int64_t size() const { return per_node * nodes; }
};

// The links of a cluster and what collectives reach on them.
struct Network {
    Link node, between;     // bandwidths of one GPU
    double collective = 0;  // seconds, once for each collective
};
// Shares applied.
Network network_of(const Hardware& hardware, const Shares& shares);

// Two levels: reduce-scatter inside nodes, all-reduce of the g-th parts between nodes, all-gather inside nodes.
//   2 (g-1)/g n/b_node + 2 (m-1)/m (n/g)/b_between + 2 (g-1) alpha_node + 2 (m-1) alpha_between
double two_level_all_reduce_seconds(const Network& network, const Group& group, double bytes);

// A collective on a group, over the fastest of the forms above as a library would choose. A ring through nodes runs at
// the slower of a GPU's link inside its node and the `per_node` network links of a node together; p - m of its steps
// are inside nodes. 0 for a group of one.
double all_reduce_seconds(const Network& network, const Group& group, double bytes);
// Reduce-scatter or all-gather; `logarithmic`: recursive halving too, where the group has one rank a node.
double half_seconds(const Network& network,
                    const Group& group,
                    double bytes,
                    bool logarithmic = false);
// A chain through all ranks, over the same links as a ring.
double broadcast_seconds(const Network& network, const Group& group, double bytes);

}  // namespace evenkeel::scaling
