// evenkeel scale measure under mpirun. Times are not looked at.
#include <gtest/gtest.h>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "tests/launch/command_line.h"

namespace evenkeel::testing {
namespace {

using Json = nlohmann::json;

Outcome measure(int ranks, const std::string& arguments) {
    return run_command(
        concat("OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
               "OMPI_MCA_rmaps_base_oversubscribe=1 " EVENKEEL_MPIEXEC " -np ",
               ranks, " " EVENKEEL_PROGRAM " scale measure --rounds 2 --seconds 1e-5 ", arguments));
}

TEST(ScaleMeasureTest, FourRanksMeasureTheGroupsOfTheirGrid) {
    const Outcome outcome = measure(4, "--tensor-parallel 2 --to 64K --json");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const Json json = Json::parse(outcome.output, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << outcome.output;
    EXPECT_EQ(json["ranks"], 4);
    EXPECT_EQ(json["wrong"], 0);
    ASSERT_EQ(json["series"].size(), 12u) << "three groups, four operations";
    for (const Json& series : json["series"]) {
        EXPECT_EQ(series["ranks"], series["group"] == "world" ? 4 : 2) << series;
        ASSERT_EQ(series["sizes"].size(), 7u);
        EXPECT_EQ(series["sizes"][0]["bytes"], 1024);
        EXPECT_EQ(series["sizes"][6]["bytes"], 65536);
        for (const Json& size : series["sizes"]) EXPECT_EQ(size["wrong"], 0) << series;
    }
}

TEST(ScaleMeasureTest, TheTableSaysWhatIsRightAndWhatIsHeldOut) {
    const Outcome outcome = measure(2, "--to 64K");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    for (const char* part :
         {"collectives of 2 ranks", "MPI between CPUs", "world, all_reduce", "world, broadcast",
          "alg GB/s", "bus GB/s", "wrong", "fit", "network of the step model"}) {
        EXPECT_NE(outcome.output.find(part), std::string::npos) << part << "\n" << outcome.output;
    }
    EXPECT_EQ(count_of("tensor, ", outcome.output), 0) << "one group of all ranks";
    const Outcome few = measure(2, "--from 4K --to 16K");
    EXPECT_NE(few.output.find("no size held out: want 5 sizes or more"), std::string::npos)
        << few.output;
    EXPECT_EQ(count_of("held-out sizes by", few.output), 0) << few.output;
}

TEST(ScaleMeasureTest, WhatMakesAFitBetterIsNamedWhereThereIsNone) {
    const TemporaryDirectory directory;
    const Outcome one = measure(2, "--from 4K --to 4K --output " + directory.file("network.json"));
    EXPECT_EQ(one.status, 2) << one.output;
    EXPECT_NE(one.output.find("got no network from these sizes, want sizes farther apart (--from, "
                              "--to), whose times grow, and more or longer series (--rounds"),
              std::string::npos)
        << one.output;
}

TEST(ScaleMeasureTest, BadInputIsToldInOneSentence) {
    const auto expect = [](const Outcome& outcome, const std::string& text) {
        EXPECT_EQ(outcome.status, 2) << outcome.output;
        EXPECT_EQ(count_of(text, outcome.output), 1) << text << "\n" << outcome.output;
    };
    expect(run_evenkeel("scale measure"), "got 1 rank, want 2 or more: mpirun -np 2");
    expect(measure(2, "--from 2"), "--from: got 2, want");
    expect(measure(2, "--from 64K --to 1K"), "--to: got 1024, want");
    expect(measure(3, "--tensor-parallel 2"), "tensor_parallel = 2");
    expect(run_evenkeel("scale plan --config " EVENKEEL_SOURCE_DIR
                        "/configs/8b_8gpu.json --network nowhere.json"),
           "nowhere.json");
}

TEST(ScaleMeasureTest, APlanReadsTheNetworkThatWasWritten) {
    const TemporaryDirectory directory;
    const std::string file = directory.file("network.json");
    // A network needs times that grow with the size: sizes far apart.
    const Outcome outcome = measure(2, "--from 4K --to 4M --output " + file);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const auto seconds = [&](const std::string& option) {
        const Outcome plan = run_evenkeel(
            "scale plan --config " EVENKEEL_SOURCE_DIR "/configs/8b_8gpu.json --json " + option);
        EXPECT_EQ(plan.status, 0) << plan.output;
        return Json::parse(plan.output)["step"]["seconds"].get<double>();
    };
    EXPECT_NE(seconds("--network " + file), seconds(""));
    const Json written = Json::parse(read_file(file));
    EXPECT_EQ(written["device"], "cpu");
    EXPECT_GT(written["error"], 0.0);
}

}  // namespace
}  // namespace evenkeel::testing
