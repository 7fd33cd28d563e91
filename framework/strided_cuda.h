// Kernels over strided device memory. Internal.
#pragma once

#include <cstdint>

#include "framework/dtype.h"

namespace evenkeel::cuda {

// The elements of one or two tensors of the same shape, as nested runs, innermost first. Strides in
// elements.
struct StridedRuns {
    static constexpr int kMost = 6;
    int count = 0;  // 0: a single element
    std::int64_t sizes[kMost] = {};
    std::int64_t to[kMost] = {};
    std::int64_t from[kMost] = {};
};

// Copies every element, rounding to nearest where the type gets narrower. The element types are
// equal or both of floats.
void copy_strided(
    const StridedRuns& runs, void* to, DType to_type, const void* from, DType from_type);

// Writes the lowest element_bytes (2 or 4) of `bits` to every element; runs.from is not read.
void fill_strided(const StridedRuns& runs, void* to, std::size_t element_bytes, std::uint32_t bits);

}  // namespace evenkeel::cuda
