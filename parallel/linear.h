// Linear layers cut over tensor-parallel ranks (Shoeybi et al. 2019, Megatron-LM, section 3). Weights are
// [out, in], y = x W^T + b. Biases are fp32, start at 0 and take no weight decay.
//
// Between two such layers all rows of the inner width are there, cut by width. Outside, the width is whole and rows are
// as the region holds them (sequence_region.h): all on every rank, or a part of them. What is given may be all at any rate.
//
// B batch, T positions, I input width, O output width, P tensor-parallel size.
#pragma once

#include <string>
#include <vector>

#include "framework/parameter.h"
#include "parallel/process_grid.h"
#include "parallel/sequence_region.h"

namespace evenkeel {

// W is cut by rows: each rank computes its own outputs from the whole input. Several weights that read
// the same input (q, k, v; gate, up) share one buffer and one product; each remains a Parameter of its
// own.
class ColumnParallelLinear {
  public:
    struct Part {
        std::string name;
        std::int64_t out_features;                      // global rows
        Sharding sharding;                              // along dim 0
        GradientSum gradient_sum = GradientSum::kNone;  // of the weight and of its bias
    };
    // type: of weights and activations. Weights get their memory from ParameterBuckets, as zeros. bias: each
    // part has one, NAME_bias, cut with its rows.
    ColumnParallelLinear(const ProcessGrid& grid,
                         const std::vector<Part>& parts,
                         std::int64_t in_features,
                         DType type,
                         bool bias = false);

    std::int64_t local_out_features() const { return offsets_.back(); }
    // Row range of a part in the local output.
    std::int64_t part_begin(int part) const { return offsets_[part]; }
    std::int64_t part_end(int part) const { return offsets_[part + 1]; }

    // x [B, T, I] as the region holds it; returns [B, T, local O], parts side by side.
    Tensor forward(const Tensor& x, const SequenceRegion& region = {}) const;
    // dy [B, T, local O], x as in forward: where it is cut, it is gathered once more, beside the product that makes
    // dx. Adds to the gradients of weights and biases; returns dx like x, summed over TP beside the product that
    // makes the gradient of the weights.
    Tensor backward(const Tensor& dy, const Tensor& x, const SequenceRegion& region = {});

    const Parameter& part(int index) const { return parts_[index]; }
    bool has_bias() const { return !biases_.empty(); }
    const Parameter& bias(int index) const { return biases_[index]; }
    void collect_parameters(ParameterList& list);

  private:
    const ProcessGrid& grid_;
    std::vector<Parameter> parts_;
    std::vector<Parameter> biases_;  // one a part, or none
    std::vector<std::int64_t> offsets_;
};

// W is cut by columns: each rank holds the columns of its own inputs; the products are summed over TP. The bias
// is whole on every rank, and added once, to the sum: with sequence parallelism each rank adds it to its own rows,
// whose gradient is then a part of the bias's.
class RowParallelLinear {
  public:
    // sharding: along dim 1 of [O, I].
    RowParallelLinear(const ProcessGrid& grid,
                      const std::string& name,
                      std::int64_t in_features,
                      std::int64_t out_features,
                      const Sharding& sharding,
                      DType type,
                      bool bias = false);

    // x [B, T, local I]; returns y [B, T, O] as the region holds it.
    Tensor forward(const Tensor& x, const SequenceRegion& region = {}) const;
    // dy like y; adds to the gradients of weight and bias; returns dx [B, T, local I].
    Tensor backward(const Tensor& dy, const Tensor& x, const SequenceRegion& region = {});

    const Parameter& weight() const { return weight_; }
    bool has_bias() const { return !bias_.name.empty(); }
    const Parameter& bias() const { return bias_; }  // without a name where there is none
    void collect_parameters(ParameterList& list);

  private:
    const ProcessGrid& grid_;
    Parameter weight_;
    Parameter bias_;
};

}  // namespace evenkeel
