// A network that has been measured, as a file: what `evenkeel scale measure --output` writes and `--network` of a plan or a
// search reads in place of the description's.
#pragma once

#include <string>
#include <vector>

#include "framework/config.h"
#include "scaling/alpha_beta_fit.h"

namespace evenkeel::scaling {

// Fields are called as Hardware's are, and are in its units; 0 is not measured. Bandwidths are what collectives reach, so
// no Shares apply to them.
struct MeasuredNetwork {
    std::string source;  // what was measured, where
    std::string device;  // "cpu" or "cuda"; "": not known
    double error = 0.0;  // of sizes held out of the fit, in the median
    double node_gigabytes_per_second = 0.0, node_latency_microseconds = 0.0;
    double network_gigabytes_per_second = 0.0, network_latency_microseconds = 0.0;
    double collective_latency_microseconds = 0.0;

    void visit_fields(ConfigVisitor& v);
};

MeasuredNetwork to_file(const NetworkFit& fit, const std::string& source);
// Above this error a fit is no description of what was measured.
inline constexpr double kMostFitError = 0.3;
// Why a cluster of GPUs may not be modelled by it, a sentence each.
std::vector<std::string> doubts_of(const MeasuredNetwork& network);
// Throws kConfig for numbers that are negative or none, and a file that measures no link.
MeasuredNetwork load_measured_network(const std::string& file);

// Puts what was measured in place of the description's, so that network_of(hardware, shares) is the measured network: links
// that were not measured stay as they were, and c is the measured one.
void use_network(const MeasuredNetwork& network, const Shares& shares, Hardware& hardware);

}  // namespace evenkeel::scaling
