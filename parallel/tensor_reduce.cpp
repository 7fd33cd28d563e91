#include "parallel/tensor_reduce.h"

#include "framework/optimizer/gradient_norm.h"

namespace evenkeel {

Pending start_sum_of_partial_products(const ProcessGrid& grid,
                                      const Tensor& tensor,
                                      CallSite site) {
    return grid.tensor().start_all_reduce(tensor, ReduceOp::kSum, site);
}

void sum_partial_products(const ProcessGrid& grid, const Tensor& tensor, CallSite site) {
    start_sum_of_partial_products(grid, tensor, site).wait();
}

Tensor sum_of_shards(const ProcessGrid& grid, const Tensor& parts, CallSite site) {
    constexpr const char* kOp = "sum_of_shards";
    check_dtype(kOp, "parts", parts, DType::kFloat32);
    EVENKEEL_CHECK(parts.device() == Device::kCpu, kOp, "parts: got ", name_of(parts.device()),
                   ", want the CPU");
    Tensor all = parts;
    if (grid.tp_size() > 1) {
        Shape shape = parts.shape();
        shape[0] *= grid.tp_size();
        all = Tensor::uninitialized(shape, DType::kFloat32);
        grid.tensor().all_gather(parts, all, site);
    }
    const Tensor sum =
        Tensor::zeros(Shape(parts.shape().begin() + 1, parts.shape().end()), DType::kFloat32);
    float* to = sum.data<float>();
    const std::int64_t count = sum.numel();
    for (std::int64_t shard = 0; shard < all.size(0); ++shard) {
        const float* from = all.data<float>() + shard * count;
        for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
    }
    return sum;
}

GradientReducer::GradientReducer(const ProcessGrid& grid,
                                 const ParameterBuckets& buckets,
                                 std::int64_t num_kv_heads)
    : grid_(grid), buckets_(buckets), num_kv_heads_(num_kv_heads) {
    for (std::size_t i = 0; i < buckets.list().size(); ++i) {
        for (const Parameter* parameter : buckets.list()[i].parameters) bucket_of_[parameter] = i;
        missing_.push_back(buckets.list()[i].parameters.size());
    }
    started_.resize(missing_.size());
}

Communicator* GradientReducer::group_of(GradientSum sum) const {
    Communicator* group = nullptr;
    switch (sum) {
        case GradientSum::kNone:
            break;
        case GradientSum::kTensorParallel:
            group = &grid_.tensor();
            break;
        case GradientSum::kReplicaGroup:
            group = &grid_.kv_replicas(num_kv_heads_);
            break;
    }
    return group == nullptr || group->size() == 1 ? nullptr : group;
}

void GradientReducer::start(std::size_t index) {
    const ParameterBucket& bucket = buckets_.list()[index];
    started_[index] = true;
    // Neighbours with the same sum travel in one message.
    std::int64_t begin = 0, end = 0;
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        const GradientSum sum = bucket.parameters[i]->gradient_sum;
        end = bucket.begins[i] + bucket.parameters[i]->grad.numel();
        const bool last = i + 1 == bucket.parameters.size();
        if (!last && bucket.parameters[i + 1]->gradient_sum == sum) continue;
        if (Communicator* group = group_of(sum); group != nullptr && end > begin) {
            group->all_reduce(bucket.grad.slice(0, begin, end), ReduceOp::kSum);
        }
        if (!last) begin = bucket.begins[i + 1];
    }
    if (grid_.dp_size() == 1 || end == 0) return;
    pending_.push_back(bucket.is_cut ? grid_.data().start_reduce_scatter(
                                           bucket.grad, bucket.part_grad, ReduceOp::kMean)
                                     : grid_.data().start_all_reduce(bucket.grad, ReduceOp::kMean));
}

void GradientReducer::complete(const ParameterList& parameters) {
    for (const Parameter* parameter : parameters) {
        const std::size_t bucket = bucket_of_.at(parameter);
        EVENKEEL_CHECK(missing_[bucket] > 0, "GradientReducer", parameter->name,
                       ": its gradient was complete before");
        if (--missing_[bucket] == 0) start(bucket);
    }
}

void GradientReducer::finish() {
    for (std::size_t i = 0; i < started_.size(); ++i) {
        if (!started_[i]) start(i);
    }
    for (Pending& pending : pending_) pending.wait();
    pending_.clear();
    started_.assign(started_.size(), false);
    for (std::size_t i = 0; i < missing_.size(); ++i) {
        missing_[i] = buckets_.list()[i].parameters.size();
    }
}

void reduce_gradients(const ProcessGrid& grid,
                      const ParameterBuckets& buckets,
                      std::int64_t num_kv_heads) {
    GradientReducer(grid, buckets, num_kv_heads).finish();
}

void squared_gradient_norm(const ProcessGrid& grid,
                           const ParameterBuckets& buckets,
                           const Tensor& total) {
    total.zero();
    if (buckets.is_cut()) {
        const Tensor sums =
            Tensor::uninitialized({buckets.num_chunks()}, DType::kFloat64, buckets.device());
        chunk_sums_of_squares(buckets, sums);
        grid.data().all_reduce(sums, ReduceOp::kSum);  // of zeros and one number each: exact
        add_in_order(sums, total);
    } else {
        add_squared_gradient_norm(buckets, total);
    }
    grid.tensor().all_reduce(total, ReduceOp::kSum);
}

std::vector<Pending> start_gather_of_values(const ProcessGrid& grid,
                                            const ParameterBuckets& buckets) {
    std::vector<Pending> pending;
    for (const ParameterBucket& bucket : buckets.list()) {
        if (!bucket.is_cut) continue;
        pending.push_back(grid.data().start_all_gather(bucket.part_value, bucket.value));
    }
    return pending;
}

}  // namespace evenkeel
