// Queries and keys that studies work on.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel::study {

// The 16 x 64 queries and keys of a teaching text's tables: numpy's default_rng(0).normal, queries first.
// Part of the program (drift_base_q.f64, drift_base_k.f64).
constexpr std::int64_t kDriftTokens = 16, kDriftWidth = 64;
std::vector<double> drift_base_q();
std::vector<double> drift_base_k();

std::vector<double> scaled(std::vector<double> values, double factor);
Tensor to_tensor(const std::vector<double>& values, const Shape& shape);  // fp32
// Normal numbers, the same for the same name.
std::vector<double> normals(std::size_t count, std::string_view name, std::uint64_t seed);

}  // namespace evenkeel::study
