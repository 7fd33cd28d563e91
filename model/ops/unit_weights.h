// Matrices whose rows or columns have unit length, and gains of their rows (Loshchilov et al. 2024, nGPT,
// sections 2.1 and 2.4): all of a model's at once, this rank's parts of them.
//
// W [O, I]. A gain g_o = factor parameter_o belongs to each output; what is multiplied with is diag(g) W, so that
// scaling outputs costs a pass nothing. On the device of the weights; nothing waits on CUDA. Sums in double, in
// an order that only the shapes decide.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel {

// One matrix. All pointers are to the work's device.
struct UnitMatrix {
    float* weight = nullptr;    // [rows, columns] contiguous
    void* value = nullptr;      // diag(g) W in the type of the work; null: it is the weight itself
    float* gradient = nullptr;  // [rows, columns]
    const float* gain = nullptr;     // [rows]; null: all gains are 1
    float* gain_gradient = nullptr;  // [rows]
    std::int64_t rows = 0, columns = 0;
    float factor = 1.0f;
    std::int32_t unit_rows = 1;  // else its columns have unit length
};
static_assert(sizeof(UnitMatrix) == 64);

class UnitWork {
  public:
    // type: of values, fp32 or bf16.
    UnitWork(std::vector<UnitMatrix> matrices, DType type, Device device);

    Device device() const { return device_; }
    DType type() const { return type_; }
    std::int64_t size() const { return static_cast<std::int64_t>(matrices_.size()); }
    const std::vector<UnitMatrix>& matrices() const { return matrices_; }
    const UnitMatrix* device_matrices() const;  // the same on CUDA
    std::int64_t most_rows() const { return most_rows_; }
    std::int64_t most_columns() const { return most_columns_; }

  private:
    std::vector<UnitMatrix> matrices_;
    DType type_;
    Device device_;
    Tensor table_;
    std::int64_t most_rows_ = 0, most_columns_ = 0;
};

// Divides each row (or column) of the weights by its length, where that is not 0; then value = diag(g) W, rounded
// once.
void normalize_weights(const UnitWork& work);
// The values alone.
void refresh_values(const UnitWork& work);
// `gradient` is that of the value on entry and that of W on return: dW = diag(g) dV; dparameter_o = factor
// <dV_o, W_o>, set, not added to. Nothing where there is no gain.
void convert_gradients(const UnitWork& work);

}  // namespace evenkeel
