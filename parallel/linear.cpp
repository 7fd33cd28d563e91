#include "parallel/linear.h"

#include "framework/gemm.h"
#include "framework/memory_scope.h"
#include "parallel/bias.h"
#include "parallel/tensor_reduce.h"

namespace evenkeel {
namespace {

constexpr const char *kForward = " (forward)", *kBackward = " (backward)";

// [B, T, width] as [B*T, width].
Tensor as_rows(const char* op, const char* name, const Tensor& x, std::int64_t width) {
    EVENKEEL_CHECK(x.defined() && x.rank() == 3, op, name, ": got ",
                   x.defined() ? to_string(x.shape()) : "no tensor", ", want [B, T, ", width, "]");
    check_shape(op, name, x, {x.size(0), x.size(1), width});
    return x.view({x.size(0) * x.size(1), width});
}

// y = x W^T.
Tensor multiply(const Tensor& x, const Tensor& rows, const Tensor& weight) {
    const Tensor y = Tensor::uninitialized({x.size(0), x.size(1), weight.size(0)}, weight.dtype(),
                                           weight.device());
    gemm(rows, weight, y.view({rows.size(0), weight.size(0)}), {.transpose_b = true});
    return y;
}

// The parts of x W^T that equal ranges of its columns make: [shards, rows, out].
Tensor multiply_by_shards(const Tensor& rows, const Tensor& weight, std::int64_t shards) {
    const std::int64_t width = weight.size(1) / shards;
    EVENKEEL_CHECK(width * shards == weight.size(1), "RowParallelLinear::forward", "weight: got ",
                   weight.size(1), " columns, want a multiple of the ", shards,
                   " virtual shards of a rank");
    const Tensor parts =
        Tensor::uninitialized({shards, rows.size(0), weight.size(0)}, weight.dtype());
    for (std::int64_t s = 0; s < shards; ++s) {
        const std::int64_t begin = s * width, end = begin + width;
        gemm(rows.slice(1, begin, end).contiguous(), weight.slice(1, begin, end).contiguous(),
             parts.slice(0, s, s + 1).view({rows.size(0), weight.size(0)}), {.transpose_b = true});
    }
    return parts;
}

// dx = dy W.
Tensor input_gradient(const Tensor& dy, const Tensor& dy_rows, const Tensor& weight) {
    const Tensor dx = Tensor::uninitialized({dy.size(0), dy.size(1), weight.size(1)},
                                            weight.dtype(), weight.device());
    gemm(dy_rows, weight, dx.view({dy_rows.size(0), weight.size(1)}));
    return dx;
}

// The rows of a stream that this rank holds where x may be all of them.
Tensor own_rows(const ProcessGrid& grid, const SequenceRegion& region, const Tensor& x) {
    const std::int64_t all = region.batch * region.positions;
    if (!region.is_cut() || x.size(0) * x.size(1) != all) return x;
    const std::int64_t rows = all / grid.tp_size(), begin = rows * grid.tp_rank();
    return x.view({1, all, x.size(2)}).slice(1, begin, begin + rows);
}

// dW += dy^T x.
void add_weight_gradient(const Tensor& dy_rows, const Tensor& x_rows, const Tensor& weight_grad) {
    gemm(dy_rows, x_rows, weight_grad, {.transpose_a = true, .accumulate = true});
}

// All parts' rows.
Tensor whole(const std::vector<Parameter>& parts, Tensor Parameter::*member) {
    Tensor rows = parts.front().*member;
    for (std::size_t i = 1; i < parts.size(); ++i) rows = Tensor::joined(rows, parts[i].*member);
    return rows;
}

Parameter declare_bias(const std::string& of, std::int64_t features, const Sharding& sharding) {
    Parameter bias = declare_parameter(of + "_bias", {features}, sharding, DType::kFloat32);
    bias.weight_decay = false;
    return bias;
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const ProcessGrid& grid,
                                           const std::vector<Part>& parts,
                                           std::int64_t in_features,
                                           DType type,
                                           bool bias)
    : grid_(grid), offsets_{0} {
    for (const Part& part : parts) {
        const Sharding& sharding = part.sharding;
        const bool whole = sharding.kind == Sharding::Kind::kReplicated;
        EVENKEEL_CHECK(whole || sharding.dim == 0, "ColumnParallelLinear", part.name,
                       ": got a cut along dimension ", sharding.dim, ", want 0");
        offsets_.push_back(offsets_.back() +
                           (whole ? part.out_features : sharding.end - sharding.begin));
    }
    for (const Part& part : parts) {
        Parameter parameter =
            declare_parameter(part.name, {part.out_features, in_features}, part.sharding, type);
        parameter.gradient_sum = part.gradient_sum;
        parameter.joins_previous = !parts_.empty();
        parts_.push_back(parameter);
        if (!bias) continue;
        parameter = declare_bias(part.name, part.out_features, part.sharding);
        parameter.gradient_sum = part.gradient_sum;
        parameter.joins_previous = !biases_.empty();
        biases_.push_back(parameter);
    }
}

Tensor ColumnParallelLinear::forward(const Tensor& x, const SequenceRegion& region) const {
    const MemoryScope scope(parts_.front().name, kForward);
    const Tensor weight = whole(parts_, &Parameter::value);
    const Tensor all = gather_rows(grid_, region, x);
    const Tensor y =
        multiply(all, as_rows("ColumnParallelLinear::forward", "x", all, weight.size(1)), weight);
    if (has_bias()) add_bias(y, whole(biases_, &Parameter::value));
    return y;
}

Tensor ColumnParallelLinear::backward(const Tensor& dy,
                                      const Tensor& x,
                                      const SequenceRegion& region) {
    const MemoryScope scope(parts_.front().name, kBackward);
    constexpr const char* kOp = "ColumnParallelLinear::backward";
    const Tensor weight = whole(parts_, &Parameter::value);
    const Tensor dy_rows = as_rows(kOp, "dy", dy, weight.size(0));
    // Each goes on beside a product: the gathering beside dx, the sum over ranks beside the weight gradient.
    PendingRows gathering = start_gather_rows(grid_, region, x);
    const Tensor dx = input_gradient(dy, dy_rows, weight);
    const Tensor x_rows = as_rows(kOp, "x", gathering.wait(), weight.size(1));
    PendingRows sum = start_sum_rows(grid_, region, dx);
    add_weight_gradient(dy_rows, x_rows, whole(parts_, &Parameter::grad));
    if (has_bias()) add_bias_gradient(dy_rows, whole(biases_, &Parameter::grad));
    return sum.wait();
}

void ColumnParallelLinear::collect_parameters(ParameterList& list) {
    for (Parameter& part : parts_) list.push_back(&part);
    for (Parameter& bias : biases_) list.push_back(&bias);
}

RowParallelLinear::RowParallelLinear(const ProcessGrid& grid,
                                     const std::string& name,
                                     std::int64_t in_features,
                                     std::int64_t out_features,
                                     const Sharding& sharding,
                                     DType type,
                                     bool bias)
    : grid_(grid), weight_(declare_parameter(name, {out_features, in_features}, sharding, type)) {
    EVENKEEL_CHECK(sharding.kind == Sharding::Kind::kSharded && sharding.dim == 1,
                   "RowParallelLinear", name,
                   ": the weight must be cut along dimension 1, one piece a rank");
    if (bias) {
        bias_ =
            declare_bias(name, out_features, Sharding::replicated(grid.tp_rank(), grid.tp_size()));
        bias_.gradient_sum = gradient_sum_over_rows(grid);
    }
}

Tensor RowParallelLinear::forward(const Tensor& x, const SequenceRegion& region) const {
    const MemoryScope scope(weight_.name, kForward);
    const Tensor& weight = weight_.value;
    const Tensor rows = as_rows("RowParallelLinear::forward", "x", x, weight.size(1));
    Tensor y;
    if (grid_.local_shards() > 0) {
        y = sum_of_shards(grid_, multiply_by_shards(rows, weight, grid_.local_shards()))
                .view({x.size(0), x.size(1), weight.size(0)});
    } else {
        y = sum_rows(grid_, region, multiply(x, rows, weight));
    }
    if (has_bias()) add_bias(y, bias_.value);
    return y;
}

Tensor RowParallelLinear::backward(const Tensor& dy,
                                   const Tensor& x,
                                   const SequenceRegion& region) {
    const MemoryScope scope(weight_.name, kBackward);
    constexpr const char* kOp = "RowParallelLinear::backward";
    const Tensor& weight = weight_.value;
    PendingRows gathering = start_gather_rows(grid_, region, dy);
    if (has_bias()) {
        const Tensor own = own_rows(grid_, region, dy);  // others' rows are theirs to count
        add_bias_gradient(as_rows(kOp, "dy", own, weight.size(0)), bias_.grad);
    }
    const Tensor all = gathering.wait();
    const Tensor dy_rows = as_rows(kOp, "dy", all, weight.size(0));
    const Tensor x_rows = as_rows(kOp, "x", x, weight.size(1));
    add_weight_gradient(dy_rows, x_rows, weight_.grad);
    return input_gradient(all, dy_rows, weight);
}

void RowParallelLinear::collect_parameters(ParameterList& list) {
    list.push_back(&weight_);
    if (has_bias()) list.push_back(&bias_);
}

}  // namespace evenkeel
