#include "scaling/alpha_beta_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "scaling/measure_collectives.h"
#include "scaling/measured_network.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel::scaling {
namespace {

using Points = std::vector<TimedCollective>;

// Sizes from 1 KiB to 16 MiB, timed by the step model itself.
void add_points(Points& points, const Network& network, Operation operation, const Group& group) {
    for (double bytes = 1024.0; bytes <= 16777216.0; bytes *= 2.0) {
        points.push_back(
            {operation, group, bytes, collective_seconds(network, operation, group, bytes)});
    }
}

// Even noise of up to `share`, the same in every run.
void shake(Points& points, double share) {
    for (std::size_t i = 0; i < points.size(); ++i) {
        points[i].seconds *= 1.0 + share * (static_cast<double>(i * 37 % 19) / 9.0 - 1.0);
    }
}

void expect_near(double got, double want, double tolerance, const std::string& what) {
    EXPECT_NEAR(got / want, 1.0, tolerance) << what << ": got " << got << ", want " << want;
}

TEST(AlphaBetaFitTest, FindsTheLinkOfEachOperationAndNumberOfRanks) {
    const Link link = {3e-6, 12e9};
    for (const Operation operation : kOperations) {
        for (const std::int64_t ranks : {2, 3, 4, 8, 64}) {
            Points points;
            add_points(points, {link, link, 0.0}, operation, {ranks, 1});
            const auto fit = fit_link(points);
            ASSERT_TRUE(fit) << name_of(operation);
            const std::string what = concat(name_of(operation), " of ", ranks);
            expect_near(fit->link.latency, link.latency, 1e-6, what + " alpha");
            expect_near(fit->link.bandwidth, link.bandwidth, 1e-6, what + " bandwidth");
            EXPECT_LT(fit->error, 1e-6) << what;
        }
    }
}

TEST(AlphaBetaFitTest, IsTheHandWorkedLineOfTwoRanks) {
    // Two ranks' all-reduce is 2 alpha + n/b: 2 us and 1 GB/s.
    const Points points = {{Operation::kAllReduce, {2, 1}, 1000.0, 5e-6},
                           {Operation::kAllReduce, {2, 1}, 2000.0, 6e-6},
                           {Operation::kAllReduce, {2, 1}, 4000.0, 8e-6}};
    const auto fit = fit_link(points);
    ASSERT_TRUE(fit);
    expect_near(fit->link.latency, 2e-6, 1e-9, "alpha");
    expect_near(fit->link.bandwidth, 1e9, 1e-9, "bandwidth");
    expect_near(predicted_seconds(*fit, Operation::kAllReduce, {2, 1}, 3000.0), 7e-6, 1e-9, "t");
}

TEST(AlphaBetaFitTest, WildPointsDoNotMoveIt) {
    const Link link = {3e-6, 12e9};
    for (const double wild : {20.0, 3.0, 0.1}) {
        Points points;
        add_points(points, {link, link, 0.0}, Operation::kAllReduce, {4, 1});
        shake(points, 0.02);
        for (const std::size_t i : {1u, 7u, 12u}) points[i].seconds *= wild;
        const auto fit = fit_link(points);
        ASSERT_TRUE(fit);
        const std::string what = concat("three of 15 points ", wild, " times as long");
        expect_near(fit->link.latency, link.latency, 0.03, what + ", alpha");
        expect_near(fit->link.bandwidth, link.bandwidth, 0.03, what + ", bandwidth");
        EXPECT_GE(fit->left_out, 3) << what;
    }
}

TEST(AlphaBetaFitTest, PredictsSizesThatWereHeldOut) {
    const Link link = {3e-6, 12e9};
    Points points;
    add_points(points, {link, link, 0.0}, Operation::kAllGather, {8, 1});
    shake(points, 0.05);
    Points fitted, held_out;
    for (std::size_t i = 0; i < points.size(); ++i) {
        (i % 3 == 2 ? held_out : fitted).push_back(points[i]);
    }
    const auto fit = fit_link(fitted);
    ASSERT_TRUE(fit);
    const FitError error = error_of(*fit, held_out);
    EXPECT_LT(error.largest, 0.12) << "noise is at most 5 % of a point";
    EXPECT_LE(error.median, error.largest);
}

TEST(AlphaBetaFitTest, HasNoBandwidthWhereTimesDoNotGrow) {
    Points points;
    for (const double bytes : {1024.0, 2048.0, 4096.0, 8192.0}) {
        points.push_back({Operation::kAllReduce, {2, 1}, bytes, 1e-5 - 1e-10 * bytes});
    }
    EXPECT_FALSE(fit_link(points));
    EXPECT_FALSE(fit_link(std::span(points).first(2))) << "two points";
    EXPECT_FALSE(fit_link({}));
    EXPECT_FALSE(fit_network({}));
}

TEST(AlphaBetaFitTest, OneNetworkForBothLinksAndTheCollective) {
    const Network network = {{2e-6, 300e9}, {6e-6, 40e9}, 9e-6};
    Points points;
    for (const Operation operation : kOperations) {
        add_points(points, network, operation, {2, 1});
        add_points(points, network, operation, {8, 1});
        add_points(points, network, operation, {1, 4});
        add_points(points, network, operation, {8, 4});  // both links: not of the fit
    }
    const auto fit = fit_network(points);
    ASSERT_TRUE(fit);
    EXPECT_EQ(fit->points, 3 * 3 * 15);
    expect_near(fit->network.node.latency, 2e-6, 1e-4, "alpha in a node");
    expect_near(fit->network.node.bandwidth, 300e9, 1e-4, "bandwidth in a node");
    expect_near(fit->network.between.latency, 6e-6, 1e-4, "alpha between nodes");
    expect_near(fit->network.between.bandwidth, 40e9, 1e-4, "bandwidth between nodes");
    expect_near(fit->network.collective, 9e-6, 1e-4, "c");
    EXPECT_LT(error_of(fit->network, points).largest, 1e-3)
        << "groups over both links follow from the two";
}

TEST(AlphaBetaFitTest, LatenciesThatCannotBeToldApartAreTheLinks) {
    // One operation on one group: c + 2 alpha is one number.
    Points points;
    add_points(points, {{2e-6, 10e9}, {2e-6, 10e9}, 4e-6}, Operation::kAllReduce, {2, 1});
    const auto fit = fit_network(points);
    ASSERT_TRUE(fit);
    EXPECT_EQ(fit->network.collective, 0.0);
    expect_near(fit->network.node.latency, 4e-6, 1e-4, "alpha");
    EXPECT_TRUE(std::isinf(fit->network.between.bandwidth)) << "no group goes between nodes";
}

TEST(MeasuredNetworkTest, APlanComputesWithWhatWasMeasured) {
    NetworkFit fit;
    fit.network = {{2e-6, 300e9}, {6e-6, 40e9}, 9e-6};
    Hardware hardware = load_hardware("h100");
    const Shares shares;
    use_network(to_file(fit, "test"), shares, hardware);
    const Network network = network_of(hardware, shares);
    expect_near(network.node.latency, 2e-6, 1e-12, "alpha in a node");
    expect_near(network.node.bandwidth, 300e9, 1e-12, "bandwidth in a node");
    expect_near(network.between.latency, 6e-6, 1e-12, "alpha between nodes");
    expect_near(network.between.bandwidth, 40e9, 1e-12, "bandwidth between nodes");
    expect_near(network.collective, 9e-6, 1e-12, "c");
}

TEST(MeasuredNetworkTest, ALinkThatWasNotMeasuredStaysTheDescriptions) {
    NetworkFit fit;
    fit.network = {{2e-6, 300e9}, {0.0, std::numeric_limits<double>::infinity()}, 0.0};
    const Hardware before = load_hardware("h100");
    Hardware hardware = before;
    use_network(to_file(fit, "test"), {}, hardware);
    EXPECT_EQ(hardware.network_gigabytes_per_second, before.network_gigabytes_per_second);
    EXPECT_EQ(hardware.network_latency_microseconds, before.network_latency_microseconds);
    EXPECT_NE(hardware.node_gigabytes_per_second, before.node_gigabytes_per_second);
}

TEST(MeasuredNetworkTest, FilesThatAreNoNetworkAreRefused) {
    const testing::TemporaryDirectory directory;
    const auto load = [&](const std::string& text) {
        const std::string path = directory.file("network.json");
        std::ofstream(path) << text;
        return load_measured_network(path);
    };
    EXPECT_EQ(load(R"({"node_gigabytes_per_second": 3})").node_gigabytes_per_second, 3.0);
    EXPECT_THROW(load("{}"), Error) << "no link";
    EXPECT_THROW(load(R"({"node_gigabytes_per_second": -3})"), Error);
    EXPECT_THROW(load(R"({"node_gigabytes": 3})"), Error) << "unknown key";
}

}  // namespace
}  // namespace evenkeel::scaling
