// The benchmarks of a GPU, of a size that the emulator runs in seconds: every figure that
// docs/benchmarks/gpu.md promises must come out, though its value means nothing there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "framework/json.h"
#include "launch/bench.h"

namespace evenkeel {
namespace {

using Json = nlohmann::json;

bench::GpuBench tiny() {
    bench::GpuBench size;
    size.tokens = 16, size.heads = 2, size.kv_heads = 1;
    size.lengths = {8, 16};
    size.rounds = 1, size.seconds = 0.0;
    return size;
}

Json json_of(const std::string& part, const bench::GpuBench& size) {
    std::ostringstream out;
    bench::run_gpu_bench({part}, true, size, out);
    const Json results = Json::parse(out.str());
    EXPECT_EQ(results.size(), 2u) << "more than the device and " << part;
    EXPECT_FALSE(results.at("device").at("name").get<std::string>().empty());
    EXPECT_FALSE(results.at("device").at("driver").get<std::string>().empty());
    EXPECT_GT(results.at("device").at("multiprocessors").get<int>(), 0);
    return results.at(part);
}

// A number that is not finite is null in JSON.
void expect_number_above(double bound, const Json& value, const std::string& name) {
    ASSERT_TRUE(value.is_number()) << name << ": " << value;
    EXPECT_GT(value.get<double>(), bound) << name;
}

// The named figures in this order, all in that unit, each with its shares: what a ratio is of, and
// its goal.
using Goals = std::map<std::string, double>;
using Figures = std::vector<std::pair<std::string, Goals>>;

void expect_figures(const Json& lines, const Figures& figures, const std::string& unit) {
    ASSERT_EQ(lines.size(), figures.size()) << lines.dump(2);
    for (std::size_t i = 0; i < figures.size(); ++i) {
        const auto& [name, goals] = figures[i];
        const Json& line = lines[i];
        EXPECT_EQ(line.at("name"), name);
        EXPECT_EQ(line.at("unit"), unit) << name;
        expect_number_above(0.0, line.at("value"), name);
        EXPECT_EQ(line.at("best"), line.at("value")) << name << ": of one round";
        Goals found;
        for (const Json& share : line.at("shares")) {
            const std::string of = share.at("of");
            const bool adds = of == "added by telemetry";
            expect_number_above(adds ? -1.0 : 0.0, share.at("ratio"), name + ", " + of);
            found[of] = share.at(adds ? "goal_at_most" : "goal");
        }
        EXPECT_EQ(found, goals) << name;
    }
}

TEST(GpuBenchTest, MeasuresNormAgainstACopyForEachHeadWidth) {
    Figures figures;
    for (const char* D : {"D=64", "D=128", "D=96", "D=256"}) {
        figures.push_back({std::string("copy ") + D, {}});
        for (const char* way : {"norm+rope forward ", "norm+rope backward "}) {
            figures.push_back({std::string(way) + D, {{"of the copy", 0.85}}});
        }
    }
    expect_figures(json_of("norm", tiny()), figures, "GB/s");
}

TEST(GpuBenchTest, MeasuresAttentionBothWaysAndItsTelemetry) {
    bench::GpuBench size = tiny();
    size.head_dims = {64, 128};
    Figures figures;
    for (const char* D : {"D=64", "D=128"}) {
        for (const char* T : {"T=8", "T=16"}) {
            for (const char* mask : {"full", "causal"}) {
                Goals forward = {{"added by telemetry", 0.01}}, backward;
                const std::string name = std::string(D) + " " + T + " " + mask;
                if (name == "D=128 T=16 full") {  // what the targets of attention are for
                    forward["of 350 TFLOP/s"] = 1.0;
                    backward["of 300 TFLOP/s"] = 1.0;
                }
                figures.push_back({"attention forward " + name, forward});
                figures.push_back({"attention backward " + name, backward});
            }
        }
    }
    expect_figures(json_of("attention", size), figures, "TFLOP/s");
}

TEST(GpuBenchTest, PrintsALineForEachFigure) {
    bench::GpuBench size = tiny();
    size.head_dims = {128}, size.lengths = {16};
    std::ostringstream out;
    bench::run_gpu_bench({}, false, size, out);
    const std::string text = out.str();
    for (const char* words : {"copy D=128", "GB/s", "attention backward D=128 T=16 causal",
                              "TFLOP/s", "added by telemetry (goal: at most 1 %)"}) {
        EXPECT_NE(text.find(words), std::string::npos) << words << " is not in:\n" << text;
    }
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 2 + 3 + 4) << text;
}

}  // namespace
}  // namespace evenkeel
