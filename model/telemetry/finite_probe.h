// Finds where a NaN or an infinity first appears in a pass through a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/tensor.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// Whether every element is finite. fp32 or bf16, any strides, on any device; the host waits.
bool all_finite(const Tensor& tensor);

// Told of every tensor of a pass, in the order of computation. All ranks tell the same names in the same
// order, so the earliest place over all ranks has one name even where only one rank is hit.
class FiniteProbe {
  public:
    void check(const std::string& name, const Tensor& tensor);
    // The name of the first tensor that is not finite on some rank of the grid, or "". Collective.
    std::string first(const ProcessGrid& grid) const;

  private:
    std::vector<std::string> names_;
    std::int64_t first_ = -1;
};

}  // namespace evenkeel
