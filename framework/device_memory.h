// How much memory a device has.
#pragma once

#include <cstddef>

#include "framework/device.h"

namespace evenkeel {

struct DeviceMemory {
    std::size_t free =
        0;  // what other processes hold is not free; on the CPU, what could be made free is
    std::size_t total = 0;
};

// Of the current GPU, or of the machine; zeros where the system does not tell. Throws like a CUDA tensor where
// there is no GPU.
DeviceMemory memory_of(Device device);

}  // namespace evenkeel
