#include "scaling/collectives.h"

#include <algorithm>
#include <bit>

namespace evenkeel::scaling {
namespace {

// What a ring's neighbour costs on average, and the slowest of its links.
Link ring_link(const Network& network, const Group& group) {
    if (group.nodes == 1) return network.node;
    if (group.per_node == 1) return network.between;
    const auto g = static_cast<double>(group.per_node), m = static_cast<double>(group.nodes);
    const double p = g * m;
    // Of p - 1 steps m - 1 go to another node.
    const double latency =
        ((p - m) * network.node.latency + (m - 1.0) * network.between.latency) / (p - 1.0);
    return {latency, std::min(network.node.bandwidth, g * network.between.bandwidth)};
}

double depth(std::int64_t ranks) {
    return static_cast<double>(std::bit_width(static_cast<std::uint64_t>(ranks - 1)));
}

}  // namespace

double ring_half_seconds(const Link& link, std::int64_t ranks, double bytes) {
    const auto p = static_cast<double>(ranks);
    return (p - 1.0) / p * bytes / link.bandwidth + (p - 1.0) * link.latency;
}

double ring_all_reduce_seconds(const Link& link, std::int64_t ranks, double bytes) {
    return 2.0 * ring_half_seconds(link, ranks, bytes);
}

double tree_all_reduce_seconds(const Link& link, std::int64_t ranks, double bytes) {
    if (ranks == 1) return 0.0;
    return 2.0 * bytes / link.bandwidth + 2.0 * depth(ranks) * link.latency;
}

double halving_half_seconds(const Link& link, std::int64_t ranks, double bytes) {
    if (ranks == 1) return 0.0;
    const auto p = static_cast<double>(ranks);
    return (p - 1.0) / p * bytes / link.bandwidth + depth(ranks) * link.latency;
}

double chain_broadcast_seconds(const Link& link, std::int64_t ranks, double bytes) {
    if (ranks == 1) return 0.0;
    return bytes / link.bandwidth + static_cast<double>(ranks - 1) * link.latency;
}

Network network_of(const Hardware& hardware, const Shares& shares) {
    constexpr double kMicro = 1e-6, kGiga = 1e9;
    return {{hardware.node_latency_microseconds * kMicro,
             hardware.node_gigabytes_per_second * kGiga * shares.node},
            {hardware.network_latency_microseconds * kMicro,
             hardware.network_gigabytes_per_second * kGiga * shares.network},
            hardware.collective_latency_microseconds * kMicro};
}

double two_level_all_reduce_seconds(const Network& network, const Group& group, double bytes) {
    const double part = bytes / static_cast<double>(group.per_node);
    return ring_all_reduce_seconds(network.node, group.per_node, bytes) +
           ring_all_reduce_seconds(network.between, group.nodes, part);
}

double all_reduce_seconds(const Network& network, const Group& group, double bytes) {
    const std::int64_t p = group.size();
    if (p == 1) return 0.0;
    const Link link = ring_link(network, group);
    const double ring = ring_all_reduce_seconds(link, p, bytes);
    // A tree's edges lie between nodes as soon as there are any.
    const Link edge = {group.nodes > 1 ? network.between.latency : network.node.latency,
                       link.bandwidth};
    const double tree = tree_all_reduce_seconds(edge, p, bytes);
    return network.collective +
           std::min({ring, tree, two_level_all_reduce_seconds(network, group, bytes)});
}

double half_seconds(const Network& network, const Group& group, double bytes, bool logarithmic) {
    if (group.size() == 1) return 0.0;
    const Link link = ring_link(network, group);
    double seconds = ring_half_seconds(link, group.size(), bytes);
    if (logarithmic && group.per_node == 1) {
        seconds = std::min(seconds, halving_half_seconds(link, group.size(), bytes));
    }
    return network.collective + seconds;
}

double broadcast_seconds(const Network& network, const Group& group, double bytes) {
    if (group.size() == 1) return 0.0;
    return network.collective +
           chain_broadcast_seconds(ring_link(network, group), group.size(), bytes);
}

}  // namespace evenkeel::scaling
