// The benchmarks of a GPU, of a size that the emulator runs in seconds.
#include <gtest/gtest.h>

#include "launch/bench.h"

namespace evenkeel {
namespace {

const bench::GpuBench kTiny{16, 2, 1, 1, 0.0};

void expect_rates(const bench::Lines& lines, std::size_t count) {
    EXPECT_EQ(lines.size(), count);
    for (const bench::Line& line : lines) {
        EXPECT_GT(line.value, 0.0) << line.name;
        EXPECT_GE(line.best, line.value) << line.name;
    }
}

TEST(GpuBenchTest, MeasuresNormAgainstACopyForEachHeadWidth) {
    expect_rates(bench::measure_gpu_norm(kTiny), 4 * 3);
}

}  // namespace
}  // namespace evenkeel
