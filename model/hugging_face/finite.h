// Weights are looked at on their way between folders: one that is not finite is found there, by name, and not as a loss.
#pragma once

#include <cstdint>
#include <string>

#include "framework/tensor.h"

namespace evenkeel::hugging_face {

// The first element, in row-major order, that is NaN or infinite; -1 when all are finite. Contiguous, on the CPU.
std::int64_t first_non_finite(const Tensor& tensor);
// Where element `index`, in row-major order, lies in a tensor of that shape: an index for each dimension.
Shape position(std::int64_t index, const Shape& shape);
// Throws kNonFinite.
[[noreturn]] void throw_non_finite(const std::string& origin,
                                   const std::string& name,
                                   const Shape& position);
// Throws kNonFinite naming the element of `name` in `origin`; the tensor is whole.
void check_finite(const Tensor& tensor, const std::string& name, const std::string& origin);

}  // namespace evenkeel::hugging_face
