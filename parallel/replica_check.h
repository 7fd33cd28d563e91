// Whether what several ranks hold copies of is still the same bits: parameters and the optimizer's state over
// data-parallel ranks, and those that are not cut (or live on the ranks of a KV head) over tensor-parallel
// ones. They are updated by the same arithmetic on the same numbers everywhere, so a difference is a defect
// of a machine or of this program, and grows unseen: the loss of no rank shows it.
#pragma once

#include <cstdint>
#include <string>

#include "framework/parameter.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// "" when all copies agree, else one sentence that names the first parameter that differs, which of its
// tensors, and the ranks. The same on all ranks. Collective over the world. Reads every element once, where
// it is; the host waits for the result.
std::string replica_drift(const ProcessGrid& grid,
                          const ParameterList& parameters,
                          std::int64_t num_kv_heads);

// Of 2- or 4-byte elements, contiguous: the sum modulo 2^64 of a bijection of each element's bits, made with
// its index counted from `first`. So a change of one element always changes it, hashes of parts add up to
// that of the whole, and the order of summation is of no matter.
std::uint64_t hash_elements(const Tensor& tensor, std::int64_t first = 0);

}  // namespace evenkeel
