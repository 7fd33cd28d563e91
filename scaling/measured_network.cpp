#include "scaling/measured_network.h"

#include <cmath>
#include <sstream>

#include "framework/error.h"

namespace evenkeel::scaling {
namespace {

constexpr double kMicro = 1e-6, kGiga = 1e9;

void put(const Link& link, double& gigabytes_per_second, double& microseconds) {
    if (!std::isfinite(link.bandwidth)) return;
    gigabytes_per_second = link.bandwidth / kGiga;
    microseconds = link.latency / kMicro;
}

}  // namespace

void MeasuredNetwork::visit_fields(ConfigVisitor& v) {
    v.field("source", source, "what was measured, where");
    v.field("device", device, "cpu or cuda: where it was measured; empty: not known");
    v.field("error", error, "of sizes held out of the fit, in the median");
    v.field("node_gigabytes_per_second", node_gigabytes_per_second,
            "one direction, each rank, within a node; 0: not measured");
    v.field("node_latency_microseconds", node_latency_microseconds, "of a message within a node");
    v.field("network_gigabytes_per_second", network_gigabytes_per_second,
            "one direction, each rank, between nodes; 0: not measured");
    v.field("network_latency_microseconds", network_latency_microseconds,
            "of a message between nodes");
    v.field("collective_latency_microseconds", collective_latency_microseconds,
            "of a collective, once");
}

MeasuredNetwork to_file(const NetworkFit& fit, const std::string& source) {
    MeasuredNetwork result;
    result.source = source;
    put(fit.network.node, result.node_gigabytes_per_second, result.node_latency_microseconds);
    put(fit.network.between, result.network_gigabytes_per_second,
        result.network_latency_microseconds);
    result.collective_latency_microseconds = fit.network.collective / kMicro;
    return result;
}

std::vector<std::string> doubts_of(const MeasuredNetwork& network) {
    std::vector<std::string> doubts;
    if (network.device == "cpu") {
        doubts.push_back(
            "measured between processes on CPUs, which says nothing of GPUs: want scale measure "
            "--device cuda on the cluster");
    }
    if (network.error > kMostFitError) {
        std::ostringstream percent;
        percent.precision(3);
        percent << 100.0 * network.error;
        doubts.push_back(concat("its fit is off by ", percent.str(),
                                " % in the median for sizes held out of it, and what follows from "
                                "it by as much"));
    }
    return doubts;
}

MeasuredNetwork load_measured_network(const std::string& file) {
    MeasuredNetwork network;
    load_config([&](ConfigVisitor& v) { network.visit_fields(v); }, file, {});
    const auto check = [&](const char* field, double value) {
        EVENKEEL_CHECK_CODE(std::isfinite(value) && value >= 0.0, ErrorCode::kConfig, "scale",
                            "network ", file, ": ", field, ": got ", value,
                            ", want 0 or a positive number");
    };
    check("error", network.error);
    check("node_gigabytes_per_second", network.node_gigabytes_per_second);
    check("node_latency_microseconds", network.node_latency_microseconds);
    check("network_gigabytes_per_second", network.network_gigabytes_per_second);
    check("network_latency_microseconds", network.network_latency_microseconds);
    check("collective_latency_microseconds", network.collective_latency_microseconds);
    EVENKEEL_CHECK_CODE(
        network.node_gigabytes_per_second > 0.0 || network.network_gigabytes_per_second > 0.0,
        ErrorCode::kConfig, "scale", "network ", file,
        ": got no link's bandwidth, want node_gigabytes_per_second, network_gigabytes_per_second, "
        "or both");
    return network;
}

void use_network(const MeasuredNetwork& network, const Shares& shares, Hardware& hardware) {
    if (network.node_gigabytes_per_second > 0.0) {
        hardware.node_gigabytes_per_second = network.node_gigabytes_per_second / shares.node;
        hardware.node_latency_microseconds = network.node_latency_microseconds;
    }
    if (network.network_gigabytes_per_second > 0.0) {
        hardware.network_gigabytes_per_second =
            network.network_gigabytes_per_second / shares.network;
        hardware.network_latency_microseconds = network.network_latency_microseconds;
    }
    hardware.collective_latency_microseconds = network.collective_latency_microseconds;
}

}  // namespace evenkeel::scaling
