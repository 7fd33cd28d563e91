#include "model/telemetry/finite_probe.h"

#include <cmath>
#include <limits>

#include "framework/dispatch.h"
#include "model/cuda/elementwise.h"

namespace evenkeel {

bool all_finite(const Tensor& tensor) {
    const Tensor packed = tensor.contiguous();
    return dispatch_float(packed.dtype(), "all_finite", [&]<typename T>() {
        if (packed.device() == Device::kCuda)
            return packed.numel() == 0 || cuda::all_finite(packed);
        const T* data = packed.data<T>();
        for (std::int64_t i = 0; i < packed.numel(); ++i) {
            if (!std::isfinite(static_cast<float>(data[i]))) return false;
        }
        return true;
    });
}

void FiniteProbe::check(const std::string& name, const Tensor& tensor) {
    if (first_ < 0 && !all_finite(tensor)) first_ = static_cast<std::int64_t>(names_.size());
    names_.push_back(name);
}

std::string FiniteProbe::first(const ProcessGrid& grid) const {
    // The smallest index is the largest negated one.
    const double mine =
        first_ < 0 ? -std::numeric_limits<double>::infinity() : -static_cast<double>(first_);
    const double earliest = -grid.world().all_reduce_scalar(mine, ReduceOp::kMax);
    return std::isinf(earliest) ? "" : names_[static_cast<std::size_t>(earliest)];
}

}  // namespace evenkeel
