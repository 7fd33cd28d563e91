#include "model/usable_memory.h"

#include <algorithm>

namespace evenkeel {

std::size_t usable_memory(std::size_t gpu_bytes) {
    constexpr std::size_t kReserve = std::size_t{6} << 30;
    return gpu_bytes - std::min(kReserve, gpu_bytes / 8);
}

}  // namespace evenkeel
