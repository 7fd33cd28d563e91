// The largest singular value of many matrices at once, by power iteration, and what follows from it for
// weights that are multiplied as gamma / sigma(W) W (Zhai et al. 2023, "Stabilizing transformer training by
// preventing attention entropy collapse", section 3.2). On one rank's parts of the matrices: what is summed
// over ranks between two functions is said at each.
//
// One iteration from a vector u: v = W^T u / |W^T u|, then sigma = |W v|, u' = W v / sigma. So sigma is at
// most the largest singular value, whatever u is, and u'^T W v = sigma.
//
// W [O, I]. With its rows cut over ranks, W^T u is a sum over ranks, and so is |W v|^2; with its columns cut,
// |W^T u|^2 and W v are. Vectors and sums are in double, in an order that only the shapes decide.
// All functions run on the device of the weights and wait for nothing on CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel {

// One matrix, this rank's part. All pointers are to the work's device.
struct SpectralMatrix {
    const float* weight = nullptr;    // [rows, columns] contiguous, W
    float* gradient = nullptr;        // of value on entry to convert_gradients, of W on return
    void* value = nullptr;            // gamma / sigma W, in the type of the work
    float* start = nullptr;           // [rows], the vector u that the last iteration began with
    const float* gamma = nullptr;     // [1]
    float* gamma_gradient = nullptr;  // [1]
    float* sigma = nullptr;           // [1]
    std::int64_t rows = 0, columns = 0;
    std::int64_t left = 0, right = 0;  // where u' and v begin in the work's vectors
    std::int32_t rows_cut = 0;         // over ranks; else its columns are
    std::int32_t owned = 1;            // whether this rank counts in sums; a replica does not
};
static_assert(sizeof(SpectralMatrix) == 96);

class SpectralWork {
  public:
    // Sets left and right of each matrix. type: of values, fp32 or bf16.
    SpectralWork(std::vector<SpectralMatrix> matrices, DType type, Device device);

    Device device() const { return left_.device(); }
    DType type() const { return type_; }
    std::int64_t size() const { return static_cast<std::int64_t>(matrices_.size()); }
    const std::vector<SpectralMatrix>& matrices() const { return matrices_; }
    const SpectralMatrix* device_matrices() const;  // the same on CUDA
    // [N] fp64: a sum of squares for each matrix, vectors that are summed over ranks, those that are not.
    const Tensor& left() const { return left_; }
    const Tensor& right() const { return right_; }
    // Their first elements, to be summed over ranks.
    const Tensor& left_sums() const { return left_sums_; }
    const Tensor& right_sums() const { return right_sums_; }
    const Tensor& inner() const { return inner_; }      // [matrices] fp64
    const Tensor& partial() const { return partial_; }  // [matrices, parts()] fp64
    std::int64_t most_rows() const { return most_rows_; }
    std::int64_t most_columns() const { return most_columns_; }

    // Into how many sums a matrix's inner product is cut.
    std::int64_t parts() const { return parts_; }
    static constexpr std::int64_t kMostParts = 64, kPartElements = 1 << 14;

  private:
    std::vector<SpectralMatrix> matrices_;
    DType type_;
    Tensor left_, right_, left_sums_, right_sums_, inner_, partial_, table_;
    std::int64_t most_rows_ = 0, most_columns_ = 0, parts_ = 1;
};

// W^T start, after start = u' where `advance` says so. Then right_sums is to be summed over ranks.
void start_iteration(const SpectralWork& work, bool advance);
// v and W v. Then left_sums is to be summed over ranks.
void continue_iteration(const SpectralWork& work);
// sigma and u'.
void finish_iteration(const SpectralWork& work);
// value = gamma / sigma W, rounded once.
void refresh_values(const SpectralWork& work);

// inner = <dV, W>, dV the gradient of the value; 0 where the matrix is not owned. Then inner is to be summed
// over ranks.
void inner_products(const SpectralWork& work);
// dW = gamma / sigma (dV - <dV, W> / sigma u' v^T), in place; dgamma = <dV, W> / sigma.
void convert_gradients(const SpectralWork& work);

}  // namespace evenkeel
