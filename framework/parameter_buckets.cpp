#include "framework/parameter_buckets.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "framework/memory_scope.h"

namespace evenkeel {
namespace {

std::int64_t local_elements(const Parameter& parameter) {
    return num_elements(parameter.local_shape());
}

void add_chunks(ParameterBucket& bucket, const Parameter& parameter, std::int64_t begin) {
    if (!parameter.trained) return;
    std::uint32_t flags = 0;
    if (parameter.weight_decay) flags |= ParameterChunk::kDecays;
    if (parameter.sharding.is_owner()) flags |= ParameterChunk::kOwned;
    if (parameter.first_phase) flags |= ParameterChunk::kFirstPhase;
    const std::int64_t end = begin + local_elements(parameter);
    for (std::int64_t at = begin; at < end; at += ParameterChunk::kMost) {
        const auto count = std::min<std::int64_t>(end - at, ParameterChunk::kMost);
        bucket.chunks.push_back({at, static_cast<std::int32_t>(count), flags});
    }
}

void allocate(ParameterBucket& bucket, Device device) {
    const MemoryScope scope(bucket.parameters.front()->name,
                            " and what follows it (weights, gradients, moments)");
    constexpr std::int64_t kAlignment = ParameterBucket::kAlignment;
    std::int64_t elements = 0;
    for (const Parameter* parameter : bucket.parameters) {
        if (!parameter->joins_previous) {
            elements = (elements + kAlignment - 1) / kAlignment * kAlignment;
        }
        bucket.begins.push_back(elements);
        elements += local_elements(*parameter);
    }
    const DType dtype = bucket.parameters.front()->dtype;
    const bool shared = dtype == DType::kFloat32 && !bucket.parameters.front()->derived_value;
    const auto zeros = [&](DType type) { return Tensor::zeros({elements}, type, device); };
    bucket.master = zeros(DType::kFloat32);
    bucket.value = shared ? bucket.master : zeros(dtype);
    bucket.grad = zeros(DType::kFloat32);
    bucket.exp_avg = zeros(DType::kFloat32);
    bucket.exp_avg_sq = zeros(DType::kFloat32);

    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        Parameter* const parameter = bucket.parameters[i];
        const Shape shape = parameter->local_shape();
        const std::int64_t begin = bucket.begins[i], end = begin + num_elements(shape);
        const auto part = [&](const Tensor& flat) { return flat.slice(0, begin, end).view(shape); };
        parameter->value = part(bucket.value);
        parameter->master = part(bucket.master);
        parameter->grad = part(bucket.grad);
        parameter->exp_avg = part(bucket.exp_avg);
        parameter->exp_avg_sq = part(bucket.exp_avg_sq);
        add_chunks(bucket, *parameter, begin);
    }
    if (device != Device::kCuda) return;
    const auto count = static_cast<std::int64_t>(bucket.chunks.size());
    const Tensor table = Tensor::uninitialized({count, 4}, DType::kInt32);
    if (count > 0) std::memcpy(table.raw(), bucket.chunks.data(), table.bytes());
    bucket.device_chunks = table.to(device);
}

}  // namespace

ParameterBuckets::ParameterBuckets(const ParameterList& parameters,
                                   Device device,
                                   std::int64_t elements)
    : device_(device) {
    struct Open {
        std::size_t bucket;
        std::int64_t elements;
    };
    std::map<std::tuple<DType, GradientSum, bool>, Open> open;
    for (std::size_t i = 0; i < parameters.size();) {
        // A parameter and those that join it.
        std::size_t end = i + 1;
        std::int64_t count = local_elements(*parameters[i]);
        for (; end < parameters.size() && parameters[end]->joins_previous; ++end) {
            EVENKEEL_CHECK(parameters[end]->dtype == parameters[i]->dtype, "ParameterBuckets",
                           parameters[end]->name, ": got ", name_of(parameters[end]->dtype),
                           ", want ", name_of(parameters[i]->dtype), " as ", parameters[i]->name,
                           " has, which it joins");
            EVENKEEL_CHECK(parameters[end]->derived_value == parameters[i]->derived_value,
                           "ParameterBuckets", parameters[end]->name,
                           ": derived_value differs from that of ", parameters[i]->name,
                           ", which it joins");
            count += local_elements(*parameters[end]);
        }
        const std::tuple key{parameters[i]->dtype, parameters[i]->gradient_sum,
                             parameters[i]->derived_value};
        auto found = open.find(key);
        if (found == open.end() || found->second.elements + count > elements) {
            buckets_.emplace_back();
            found = open.insert_or_assign(key, Open{buckets_.size() - 1, 0}).first;
        }
        found->second.elements += count;
        auto& members = buckets_[found->second.bucket].parameters;
        for (; i < end; ++i) members.push_back(parameters[i]);
    }
    for (ParameterBucket& bucket : buckets_) allocate(bucket, device);
}

void ParameterBuckets::zero_gradients() const {
    for (const ParameterBucket& bucket : buckets_) bucket.grad.zero();
}

void ParameterBuckets::zero_gradients_after_first_phase() const {
    for (const ParameterBucket& bucket : buckets_) {
        for (const Parameter* parameter : bucket.parameters) {
            if (!parameter->first_phase) parameter->grad.zero();
        }
    }
}

}  // namespace evenkeel
