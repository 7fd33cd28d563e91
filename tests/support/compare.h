// Comparison of tensors, on whatever device they are, with a double-precision reference, and the
// tolerance rule for fast paths.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel::testing {

// All elements in row-major order, as double.
std::vector<double> to_doubles(const Tensor& tensor);

// |got - want| <= absolute + relative * |want| for every element; NaN equals NaN only. A failure
// names the worst element by its coordinates, both values and the allowance.
::testing::AssertionResult near(const Tensor& got,
                                const std::vector<double>& want,
                                double relative,
                                double absolute);
::testing::AssertionResult near(const Tensor& got,
                                const Tensor& want,
                                double relative,
                                double absolute);

// Same bits, NaNs included.
::testing::AssertionResult same_bits(const Tensor& got, const Tensor& want);

// The rule for fast paths (as in FlashAttention's tests): the largest error of `got` against the
// double reference is at most `factor` times that of `plain`, a straightforward implementation in
// the same storage type, plus two roundings of the storage type at the reference's largest
// magnitude (so that a plain result that happens to be exact does not demand the impossible). A
// plain result that is infinitely wrong measures nothing, and fails, except where the reference
// leaves the range of the type and both results are its infinity.
::testing::AssertionResult within_error_of_plain(const Tensor& got,
                                                 const Tensor& plain,
                                                 const std::vector<double>& reference,
                                                 double factor);

// |a - b| / max(|a|, |b|, tiny).
double relative_difference(double a, double b);

}  // namespace evenkeel::testing
