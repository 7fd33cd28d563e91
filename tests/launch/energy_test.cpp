// Energy as the machine's counters tell it, here files of a directory.
#include "launch/scale/run/energy.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace evenkeel::scale {
namespace {

class EnergyTest : public ::testing::Test {
  protected:
    void set(const std::string& zone, const std::string& file, const std::string& text) {
        std::filesystem::create_directories(directory_.file(zone));
        directory_.write(zone + "/" + file, text);
    }
    testing::TemporaryDirectory directory_;
};

TEST_F(EnergyTest, SumsPackagesAndNotTheirParts) {
    set("intel-rapl:0", "energy_uj", "1000000\n");
    set("intel-rapl:0", "max_energy_range_uj", "5000000\n");
    set("intel-rapl:1", "energy_uj", "4000000\n");
    set("intel-rapl:1", "max_energy_range_uj", "5000000\n");
    set("intel-rapl:0:0", "energy_uj", "7\n");
    EnergyMeter meter(Device::kCpu, directory_.file("."));
    EXPECT_EQ(meter.sources(), "2 processor packages");
    meter.start();
    set("intel-rapl:0", "energy_uj", "3500000\n");
    set("intel-rapl:1", "energy_uj", "500000\n");  // past its end
    set("intel-rapl:0:0", "energy_uj", "900000\n");
    EXPECT_NEAR(meter.joules().value(), 2.5 + 1.5, 1e-12);
}

TEST_F(EnergyTest, IsSilentWhereNothingTellsIt) {
    EnergyMeter none(Device::kCpu, directory_.file("nowhere"));
    none.start();
    EXPECT_EQ(none.sources(), "");
    EXPECT_FALSE(none.joules());
    set("intel-rapl:0", "energy_uj", "no number\n");
    EXPECT_EQ(EnergyMeter(Device::kCpu, directory_.file(".")).sources(), "");
}

}  // namespace
}  // namespace evenkeel::scale
