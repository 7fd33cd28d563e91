#include "framework/device_memory.h"

#include <fstream>
#include <string>

#include "framework/device_cuda.h"

namespace evenkeel {
namespace {

DeviceMemory memory_of_machine() {
    std::ifstream file("/proc/meminfo");
    DeviceMemory memory;
    std::string name, unit;
    for (std::size_t kib = 0; file >> name >> kib && std::getline(file, unit);) {
        if (name == "MemTotal:") memory.total = kib * 1024;
        if (name == "MemAvailable:") memory.free = kib * 1024;
    }
    return memory;
}

}  // namespace

DeviceMemory memory_of(Device device) {
    if (device == Device::kCpu) return memory_of_machine();
    DeviceMemory memory;
    cuda::memory_info(memory.free, memory.total);
    return memory;
}

}  // namespace evenkeel
