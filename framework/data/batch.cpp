#include "framework/data/batch.h"

#include <algorithm>

#include "framework/error.h"

namespace evenkeel {

std::int64_t Batch::num_targets() const {
    EVENKEEL_CHECK(targets.device() == Device::kCpu && targets.is_contiguous() &&
                       targets.dtype() == DType::kInt32,
                   "Batch", "targets: want a contiguous int32 tensor on the CPU");
    const std::int32_t* const first = targets.data<std::int32_t>();
    return targets.numel() - std::count(first, first + targets.numel(), kNoTarget);
}

}  // namespace evenkeel
