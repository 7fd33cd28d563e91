// Collectives, failures and descriptions of clusters, against values worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "framework/error.h"
#include "scaling/collectives.h"
#include "scaling/failures.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel::scaling {
namespace {

constexpr Link kNode = {1e-6, 1e11}, kBetween = {1e-5, 1e10};
constexpr Network kNetwork = {kNode, kBetween, 0.0};
constexpr double kGiga = 1e9;

std::string complaint(const std::function<void()>& run) {
    try {
        run();
        return "";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        return error.what();
    }
}

TEST(CollectivesTest, ARingSendsSevenEighthsTwiceAndPaysEachStep) {
    // 2 * 7/8 * 1e9 / 1e11 + 14 * 1e-6
    EXPECT_NEAR(ring_all_reduce_seconds(kNode, 8, kGiga), 0.017514, 1e-12);
    EXPECT_NEAR(ring_half_seconds(kNode, 8, kGiga), 0.008757, 1e-12);
    EXPECT_EQ(ring_all_reduce_seconds(kNode, 1, kGiga), 0.0);
}

TEST(CollectivesTest, ATreeSendsAllTwiceAndPaysItsDepth) {
    // 2 * 1e9 / 1e11 + 2 * 3 * 1e-6, for 5 to 8 ranks
    EXPECT_NEAR(tree_all_reduce_seconds(kNode, 8, kGiga), 0.020006, 1e-12);
    EXPECT_NEAR(tree_all_reduce_seconds(kNode, 5, kGiga), 0.020006, 1e-12);
    EXPECT_NEAR(tree_all_reduce_seconds(kNode, 9, kGiga), 0.020008, 1e-12);
    EXPECT_EQ(tree_all_reduce_seconds(kNode, 1, kGiga), 0.0);
}

TEST(CollectivesTest, HalvingPaysLogarithmicallyManySteps) {
    EXPECT_NEAR(halving_half_seconds(kNode, 8, kGiga), 0.00875 + 3e-6, 1e-12);
    EXPECT_LT(halving_half_seconds(kNode, 1024, 1e3), ring_half_seconds(kNode, 1024, 1e3));
}

TEST(CollectivesTest, TwoLevelsSendAnEighthBetweenNodes) {
    // 2 * 7/8 * 0.01 + 14e-6 inside nodes, 2 * 3/4 * 1.25e8 / 1e10 + 6 * 1e-5 between them
    EXPECT_NEAR(two_level_all_reduce_seconds(kNetwork, {8, 4}, kGiga), 0.036324, 1e-12);
}

TEST(CollectivesTest, AGroupTakesTheFastestForm) {
    // Inside a node: the ring for much, the tree for little.
    EXPECT_EQ(all_reduce_seconds(kNetwork, {8, 1}, kGiga),
              ring_all_reduce_seconds(kNode, 8, kGiga));
    EXPECT_EQ(all_reduce_seconds(kNetwork, {8, 1}, 8.0), tree_all_reduce_seconds(kNode, 8, 8.0));
    // Through nodes a ring runs at the node's eight links together, 8e10 bytes a second, with 28 steps inside nodes
    // and 3 between them.
    const double ring = 2.0 * 31.0 / 32.0 * kGiga / 8e10 + 2.0 * (28.0 * 1e-6 + 3.0 * 1e-5);
    EXPECT_NEAR(all_reduce_seconds(kNetwork, {8, 4}, kGiga), ring, 1e-12);
    EXPECT_EQ(all_reduce_seconds(kNetwork, {1, 1}, kGiga), 0.0);
    EXPECT_EQ(half_seconds(kNetwork, {1, 1}, kGiga), 0.0);
    // Logarithmic halves are of one rank a node only.
    EXPECT_LT(half_seconds(kNetwork, {1, 64}, 1e3, true), half_seconds(kNetwork, {1, 64}, 1e3));
    EXPECT_EQ(half_seconds(kNetwork, {2, 64}, 1e3, true), half_seconds(kNetwork, {2, 64}, 1e3));
}

TEST(CollectivesTest, SharesAndTheFixedTimeAreApplied) {
    const Hardware h100 = load_hardware("h100");
    const Network network = network_of(h100, {.node = 0.5, .network = 0.25});
    EXPECT_DOUBLE_EQ(network.node.bandwidth, 225e9);
    EXPECT_DOUBLE_EQ(network.between.bandwidth, 12.5e9);
    EXPECT_DOUBLE_EQ(network.between.latency, 4e-6);
    Network slow = kNetwork;
    slow.collective = 1.0;
    EXPECT_NEAR(all_reduce_seconds(slow, {8, 1}, kGiga), 1.017514, 1e-12);
}

TEST(FailuresTest, YoungsIntervalIsTheRootOfTwiceCostTimesMean) {
    EXPECT_DOUBLE_EQ(young_interval(50.0, 3600.0), 600.0);
    // It is where C / t + t / 2 M is least.
    const auto lost = [](double t) { return 50.0 / t + t / 7200.0; };
    EXPECT_LT(lost(600.0), lost(590.0));
    EXPECT_LT(lost(600.0), lost(610.0));
}

Hardware simple_cluster() {
    Hardware hardware = load_hardware("h100");
    hardware.gpu_hours_between_failures = 1000.0;
    hardware.host_gigabytes_per_second = 2.0;
    hardware.checkpoint_gigabytes_per_second = 100.0;
    hardware.restart_minutes = 10.0;
    return hardware;
}

TEST(FailuresTest, ALongRunLosesWhatItsPartsAddUpTo) {
    // 100 GPUs fail every 10 hours; of 10 TB the first copies 100 GB, for 50 s, and storage takes 100 s: sqrt(2 * 50 * 36000)
    const LongRun run = plan_long_run(simple_cluster(), 100, {.state = 1e13, .copy = 1e11});
    EXPECT_DOUBLE_EQ(run.between_failures, 36000.0);
    EXPECT_DOUBLE_EQ(run.checkpoint_stop, 50.0);
    EXPECT_DOUBLE_EQ(run.checkpoint_write, 100.0);
    EXPECT_NEAR(run.interval, 1897.366596, 1e-6);
    EXPECT_NEAR(run.checkpoint_share, 50.0 / 1897.366596, 1e-9);
    EXPECT_NEAR(run.failure_share, (1897.366596 / 2.0 + 100.0 + 600.0) / 36000.0, 1e-9);
    EXPECT_NEAR(run.useful(), 1.0 - run.checkpoint_share - run.failure_share, 1e-15);
}

TEST(FailuresTest, NoCheckpointBeginsBeforeTheLastIsWritten) {
    constexpr CheckpointBytes kWhole{.state = 1e13, .copy = 1e11};
    Hardware hardware = simple_cluster();
    hardware.checkpoint_gigabytes_per_second = 1.0;
    EXPECT_DOUBLE_EQ(plan_long_run(hardware, 100, kWhole).interval, 10000.0);
    EXPECT_DOUBLE_EQ(plan_long_run(hardware, 100, kWhole, 500.0).interval, 10000.0);
    EXPECT_DOUBLE_EQ(plan_long_run(simple_cluster(), 100, kWhole, 500.0).interval, 500.0);
    // So many GPUs that nothing is left.
    EXPECT_EQ(plan_long_run(hardware, 10'000'000, kWhole).useful(), 0.0);
}

TEST(FailuresTest, WithoutCopiesTrainingWaitsForStorage) {
    // 10 TB take 100 s: sqrt(2 * 100 * 36000).
    const LongRun run = plan_long_run(simple_cluster(), 100, {.state = 1e13});
    EXPECT_DOUBLE_EQ(run.checkpoint_stop, 100.0);
    EXPECT_NEAR(run.interval, 2683.281573, 1e-6);
    EXPECT_NEAR(run.failure_share, (2683.281573 / 2.0 + 600.0) / 36000.0, 1e-9);
}

TEST(HardwareTest, AllDescriptionsAreWholeAndNameTheirSources) {
    const std::vector<std::string> names = hardware_names();
    ASSERT_EQ(names, (std::vector<std::string>{"a100", "b200", "h100", "h100_500w", "h200"}));
    for (const std::string& name : names) {
        const Hardware hardware = load_hardware(name);
        EXPECT_GT(hardware.source.size(), 100u) << name;
        EXPECT_FALSE(hardware.title.empty()) << name;
        // No kernel is faster than the peak, and backward of attention not faster than forward.
        EXPECT_LT(hardware.native_attention_forward_teraflops, hardware.peak_teraflops) << name;
        EXPECT_LE(hardware.attention_backward_teraflops, hardware.attention_forward_teraflops)
            << name;
        EXPECT_GT(hardware.node_gigabytes_per_second, hardware.network_gigabytes_per_second)
            << name;
    }
}

TEST(HardwareTest, APowerLimitSlowsTheCoresByItsCubeRoot) {
    EXPECT_EQ(power_factor(load_hardware("h100")), 1.0);
    EXPECT_NEAR(power_factor(load_hardware("h100_500w")), std::cbrt(5.0 / 7.0), 1e-12);
}

TEST(HardwareTest, OnesOwnClusterIsAFile) {
    const testing::TemporaryDirectory directory;
    const std::string file = directory.path() + "/mine.json";
    Hardware h100 = load_hardware("h100");
    h100.memory_gib = 1.5;
    std::ofstream(file) << to_json([&](ConfigVisitor& v) { h100.visit_fields(v); });
    const Hardware mine = load_hardware(file);
    EXPECT_EQ(mine.name, "mine");
    EXPECT_EQ(mine.memory_gib, 1.5);
    EXPECT_EQ(mine.peak_teraflops, 989.0);

    std::ofstream(file) << R"({"peak_teraflops": 989})";
    EXPECT_EQ(complaint([&] { load_hardware(file); }),
              "[scale] hardware mine: matmul_teraflops: got 0, want a positive number");
    std::ofstream(file) << R"({"peak_terraflops": 989})";
    EXPECT_NE(complaint([&] { load_hardware(file); }).find("did you mean peak_teraflops?"),
              std::string::npos);
}

TEST(HardwareTest, AnUnknownNameIsToldTheNearest) {
    EXPECT_EQ(complaint([] { load_hardware("h10"); }),
              "[scale] hardware: got \"h10\", want one of a100, b200, h100, h100_500w, h200, or a "
              "JSON file; did you mean h100?");
}

}  // namespace
}  // namespace evenkeel::scaling
