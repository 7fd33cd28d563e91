#include "parallel/tensor_reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "parallel/reduce_rows.h"

namespace evenkeel {
namespace {

// A gradient of at least this many elements travels where it is; smaller ones are packed, since a message
// of its own costs as much as this many bytes.
constexpr std::int64_t kLargeGradient = 1 << 16;

void scale(const Tensor& tensor, float factor) {
    float* values = tensor.data<float>();
    const std::int64_t count = tensor.numel();
    for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

// Sums the gradients over the group, then multiplies by the factor.
void reduce_over(Communicator& group,
                 const std::vector<const Parameter*>& parameters,
                 float factor) {
    if (group.size() == 1) return;
    std::int64_t packed_count = 0;
    for (const Parameter* parameter : parameters) {
        const Tensor& grad = parameter->grad;
        if (grad.numel() < kLargeGradient) {
            packed_count += grad.numel();
            continue;
        }
        group.all_reduce(grad, ReduceOp::kSum);
        if (factor != 1.0f) scale(grad, factor);
    }
    if (packed_count == 0) return;
    const Tensor packed = Tensor::uninitialized({packed_count}, DType::kFloat32);
    const auto for_each_small = [&](auto&& visit) {
        float* at = packed.data<float>();
        for (const Parameter* parameter : parameters) {
            const Tensor& grad = parameter->grad;
            if (grad.numel() == 0 || grad.numel() >= kLargeGradient) continue;
            visit(grad.data<float>(), at, grad.bytes());
            at += grad.numel();
        }
    };
    for_each_small([](float* grad, float* at, std::size_t bytes) { std::memcpy(at, grad, bytes); });
    group.all_reduce(packed, ReduceOp::kSum);
    if (factor != 1.0f) scale(packed, factor);
    for_each_small([](float* grad, float* at, std::size_t bytes) { std::memcpy(grad, at, bytes); });
}

// Partial sums of blocks of fixed size, so that the result does not depend on the number of threads.
double sum_of_squares(const Tensor& tensor) {
    constexpr std::int64_t kBlock = 1 << 14;
    const float* values = tensor.data<float>();
    const std::int64_t count = tensor.numel(), blocks = (count + kBlock - 1) / kBlock;
    std::vector<double> partial(static_cast<std::size_t>(blocks));
    const auto row_sum = EVENKEEL_FOR_CURRENT_ISA(row_sum_of_squares);
#pragma omp parallel for
    for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t begin = block * kBlock;
        partial[static_cast<std::size_t>(block)] =
            row_sum(values + begin, std::min(kBlock, count - begin));
    }
    double sum = 0;
    for (double value : partial) sum += value;
    return sum;
}

}  // namespace

void sum_partial_products(const ProcessGrid& grid, const Tensor& tensor) {
    grid.tensor().all_reduce(tensor, ReduceOp::kSum);
}

void reduce_gradients(const ProcessGrid& grid,
                      const ParameterList& parameters,
                      std::int64_t num_kv_heads) {
    std::vector<const Parameter*> over_tensor, over_replicas, all;
    for (const Parameter* parameter : parameters) {
        all.push_back(parameter);
        switch (parameter->gradient_sum) {
            case GradientSum::kNone:
                break;
            case GradientSum::kTensorParallel:
                over_tensor.push_back(parameter);
                break;
            case GradientSum::kReplicaGroup:
                over_replicas.push_back(parameter);
                break;
        }
    }
    reduce_over(grid.tensor(), over_tensor, 1.0f);
    if (!over_replicas.empty()) {
        reduce_over(grid.kv_replicas(num_kv_heads), over_replicas, 1.0f);
    }
    reduce_over(grid.data(), all, 1.0f / static_cast<float>(grid.dp_size()));
}

double gradient_norm(const ProcessGrid& grid, const ParameterList& parameters) {
    double sum = 0;
    for (const Parameter* parameter : parameters) {
        if (parameter->sharding.is_owner()) sum += sum_of_squares(parameter->grad);
    }
    return std::sqrt(grid.tensor().all_reduce_scalar(sum, ReduceOp::kSum));
}

}  // namespace evenkeel
