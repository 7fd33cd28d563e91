#include "tests/support/devices.h"

namespace evenkeel::testing {

std::vector<Device> test_gpus() {
    constexpr bool kOnCuda = EVENKEEL_TEST_CUDA;  // by CMake
    return kOnCuda ? std::vector<Device>{Device::kCuda} : std::vector<Device>{};
}

std::vector<Device> test_devices() {
    std::vector<Device> devices = test_gpus();
    devices.insert(devices.begin(), Device::kCpu);
    return devices;
}

}  // namespace evenkeel::testing
