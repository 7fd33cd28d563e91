// Where a tensor's memory lives and its operations run.
#pragma once

#include <string>

namespace evenkeel {

enum class Device { kCpu, kCuda };

constexpr const char* name_of(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

// How many there are: 1 CPU; as many GPUs as this process can use, 0 without any and in a build
// without CUDA.
int device_count(Device device);

// Empty when a GPU can be used; else one sentence that says why not: no CUDA in this build, no GPU,
// a driver too old for this build, a GPU older than sm_80.
std::string why_no_cuda();

// The current GPU, for reports. Throws like a CUDA tensor where there is none.
struct GpuDescription {
    std::string name;
    std::string driver;  // its version where the system tells it, and the CUDA version it supports
    int multiprocessors = 0;
    std::string uuid;  // 32 hexadecimal digits; the same for every process that sees this GPU
};
GpuDescription describe_gpu();

// Makes one of the device_count() GPUs that can be used the current one of this thread: tensors made from
// now on are there.
void use_gpu(int index);

}  // namespace evenkeel
