// Input data for tests: reproducible, and of the kinds that have broken attention kernels before.
#pragma once

#include <cstdint>
#include <string>

#include "framework/tensor.h"

namespace evenkeel::testing {

enum class DataKind {
    kGaussian,            // independent, unit variance
    kTied,                // every row the same: all logits of a query equal
    kOneHot,              // one large channel a row, so that softmax picks one key
    kMassiveActivations,  // Gaussian with a few rows a thousand times as large
    kZero,
};
inline constexpr DataKind kAllDataKinds[] = {DataKind::kGaussian, DataKind::kTied,
                                             DataKind::kOneHot, DataKind::kMassiveActivations,
                                             DataKind::kZero};
std::string name_of(DataKind kind);

// Rows run along the last dimension.
Tensor make_data(DataKind kind, const Shape& shape, DType dtype, std::uint64_t seed);
Tensor gaussian(const Shape& shape, DType dtype, std::uint64_t seed, double deviation = 1.0);

// A tensor of NaNs, for outputs that must be written everywhere.
Tensor poisoned(const Shape& shape, DType dtype);

}  // namespace evenkeel::testing
