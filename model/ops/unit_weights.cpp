#include "model/ops/unit_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/ops/unit_weights_backends.h"

namespace evenkeel {

UnitWork::UnitWork(std::vector<UnitMatrix> matrices, DType type, Device device)
    : matrices_(std::move(matrices)), type_(type), device_(device) {
    for (const UnitMatrix& matrix : matrices_) {
        most_rows_ = std::max(most_rows_, matrix.rows);
        most_columns_ = std::max(most_columns_, matrix.columns);
    }
    if (device == Device::kCpu) return;
    const auto words = static_cast<std::int64_t>(sizeof(UnitMatrix) / 4);
    const Tensor table = Tensor::uninitialized({size(), words}, DType::kInt32);
    if (size() > 0) std::memcpy(table.raw(), matrices_.data(), table.bytes());
    table_ = table.to(device);
}

const UnitMatrix* UnitWork::device_matrices() const {
    return reinterpret_cast<const UnitMatrix*>(table_.raw());
}

namespace {

void refresh(const UnitWork& work, bool normalize) {
    if (work.size() == 0) return;
    switch (work.device()) {
        case Device::kCpu:
            return cpu::refresh_weights(work, normalize);
        case Device::kCuda:
            return cuda::refresh_weights(work, normalize);
    }
}

}  // namespace

void normalize_weights(const UnitWork& work) { refresh(work, true); }

void refresh_values(const UnitWork& work) { refresh(work, false); }

void convert_gradients(const UnitWork& work) {
    if (work.size() == 0) return;
    switch (work.device()) {
        case Device::kCpu:
            return cpu::convert_gradients(work);
        case Device::kCuda:
            return cuda::convert_gradients(work);
    }
}

}  // namespace evenkeel
