// Where a tensor's memory lives and its operations run.
#pragma once

namespace evenkeel {

enum class Device { kCpu, kCuda };

constexpr const char* name_of(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

}  // namespace evenkeel
