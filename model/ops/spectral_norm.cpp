#include "model/ops/spectral_norm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/ops/spectral_norm_backends.h"

namespace evenkeel {

SpectralWork::SpectralWork(std::vector<SpectralMatrix> matrices, DType type, Device device)
    : matrices_(std::move(matrices)), type_(type) {
    std::int64_t left = size(), right = size(), left_sums = 0, right_sums = 0;
    for (const bool summed : {true, false}) {
        for (SpectralMatrix& matrix : matrices_) {
            const bool rows_cut = matrix.rows_cut != 0;
            if (rows_cut != summed) matrix.left = std::exchange(left, left + matrix.rows);
            if (rows_cut == summed) matrix.right = std::exchange(right, right + matrix.columns);
            most_rows_ = std::max(most_rows_, matrix.rows);
            most_columns_ = std::max(most_columns_, matrix.columns);
            const std::int64_t elements = matrix.rows * matrix.columns;
            parts_ = std::max(parts_, std::min(kMostParts, elements / kPartElements));
        }
        if (summed) left_sums = left, right_sums = right;
    }
    left_ = Tensor::zeros({left}, DType::kFloat64, device);
    right_ = Tensor::zeros({right}, DType::kFloat64, device);
    left_sums_ = left_.slice(0, 0, left_sums);
    right_sums_ = right_.slice(0, 0, right_sums);
    inner_ = Tensor::zeros({size()}, DType::kFloat64, device);
    partial_ = Tensor::zeros({size(), parts_}, DType::kFloat64, device);
    if (device == Device::kCpu) return;
    const auto words = static_cast<std::int64_t>(sizeof(SpectralMatrix) / 4);
    const Tensor table = Tensor::uninitialized({size(), words}, DType::kInt32);
    if (size() > 0) std::memcpy(table.raw(), matrices_.data(), table.bytes());
    table_ = table.to(device);
}

const SpectralMatrix* SpectralWork::device_matrices() const {
    return reinterpret_cast<const SpectralMatrix*>(table_.raw());
}

namespace {

template <typename Cpu, typename Cuda, typename... Arguments>
void on_device(const SpectralWork& work, Cpu cpu, Cuda cuda, Arguments... arguments) {
    if (work.size() == 0) return;
    switch (work.device()) {
        case Device::kCpu:
            return cpu(work, arguments...);
        case Device::kCuda:
            return cuda(work, arguments...);
    }
}

}  // namespace

void start_iteration(const SpectralWork& work, bool advance) {
    on_device(work, cpu::start_iteration, cuda::start_iteration, advance);
}
void continue_iteration(const SpectralWork& work) {
    on_device(work, cpu::continue_iteration, cuda::continue_iteration);
}
void finish_iteration(const SpectralWork& work) {
    on_device(work, cpu::finish_iteration, cuda::finish_iteration);
}
void refresh_values(const SpectralWork& work) {
    on_device(work, cpu::refresh_values, cuda::refresh_values);
}
void inner_products(const SpectralWork& work) {
    on_device(work, cpu::inner_products, cuda::inner_products);
}
void convert_gradients(const SpectralWork& work) {
    on_device(work, cpu::convert_gradients, cuda::convert_gradients);
}

}  // namespace evenkeel
