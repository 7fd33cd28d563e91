// Tests that run on every device that this build is tested on:
//
//     class NormTest : public ::testing::TestWithParam<Device> {};
//     TEST_P(NormTest, ...) { const Tensor x = on(GetParam(), gaussian(...)); ... }
//     INSTANTIATE_TEST_SUITE_P(, NormTest, ::testing::ValuesIn(test_devices()), device_name);
//
// The program must have been given to evenkeel_device_test() in CMake. Data are made and compared
// on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel {

// What GoogleTest prints a parameter with.
inline void PrintTo(Device device, std::ostream* out) { *out << name_of(device); }

}  // namespace evenkeel

namespace evenkeel::testing {

// The CPU, and CUDA in a build that has it, on the emulator or a GPU. Decided when the tests are
// built: a GPU that does not answer fails the tests, it does not skip them.
std::vector<Device> test_devices();
// Without the CPU: for tests of what only CUDA does. Maybe empty.
std::vector<Device> test_gpus();

inline std::string device_name(const ::testing::TestParamInfo<Device>& info) {
    return name_of(info.param);
}

// The tensor itself if it is there already, else a contiguous copy.
inline Tensor on(Device device, const Tensor& tensor) { return tensor.to(device); }
inline Tensor on_cpu(const Tensor& tensor) { return tensor.to(Device::kCpu); }

}  // namespace evenkeel::testing
