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

// Elements of memory: the same on all tensor-parallel ranks, also where their pieces differ by one row, so that
// all have the same buckets and send in the same order.
std::int64_t room_of(const Parameter& parameter) {
    Shape shape = parameter.local_shape();
    const Sharding& sharding = parameter.sharding;
    if (sharding.longest > 0) shape[static_cast<std::size_t>(sharding.dim)] = sharding.longest;
    return num_elements(shape);
}

std::int64_t rounded_up(std::int64_t count, std::int64_t unit) {
    return (count + unit - 1) / unit * unit;
}

// The chunks of a parameter in elements [begin, end) of the bucket, counted from there.
void add_chunks(std::vector<ParameterChunk>& chunks,
                const Parameter& parameter,
                std::int64_t parameter_begin,
                std::int64_t begin,
                std::int64_t end,
                bool counts) {
    if (!parameter.trained) return;
    std::uint32_t flags = 0;
    if (parameter.weight_decay) flags |= ParameterChunk::kDecays;
    if (parameter.sharding.is_owner() && counts) flags |= ParameterChunk::kOwned;
    if (parameter.first_phase) flags |= ParameterChunk::kFirstPhase;
    const std::int64_t last = std::min(end, parameter_begin + local_elements(parameter));
    for (std::int64_t at = std::max(begin, parameter_begin); at < last;
         at += ParameterChunk::kMost) {
        const auto count = std::min<std::int64_t>(last - at, ParameterChunk::kMost);
        chunks.push_back({at - begin, static_cast<std::int32_t>(count), flags});
    }
}

// Fills the bucket's chunks. Returns how many all parts have.
std::int64_t make_chunks(ParameterBucket& bucket,
                         std::int64_t elements,
                         std::int64_t part_elements,
                         const StateRanks& ranks) {
    // Of a bucket that every rank has whole while others are cut, one rank counts.
    const bool counts = !ranks.cut || bucket.is_cut || ranks.rank == 0;
    std::int64_t all = 0;
    for (std::int64_t part = 0; part * part_elements < elements; ++part) {
        const std::int64_t begin = part * part_elements;
        const std::int64_t end = std::min(elements, begin + part_elements);
        std::vector<ParameterChunk> chunks;
        for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
            add_chunks(chunks, *bucket.parameters[i], bucket.begins[i], begin, end, counts);
        }
        const auto count = static_cast<std::int64_t>(chunks.size());
        if (bucket.is_cut && part == ranks.rank) {
            bucket.first_chunk += all;
            bucket.chunks = std::move(chunks);
        } else if (!bucket.is_cut) {
            for (ParameterChunk& chunk : chunks) {
                chunk.begin += begin;
                bucket.chunks.push_back(chunk);
            }
        }
        all += count;
    }
    return all;
}

// Returns how many chunks all parts of the bucket have.
std::int64_t allocate(ParameterBucket& bucket, Device device, const StateRanks& ranks) {
    const MemoryScope scope(bucket.parameters.front()->name,
                            " and what follows it (weights, gradients, moments)");
    constexpr std::int64_t kAlignment = ParameterBucket::kAlignment;
    std::int64_t elements = 0;
    for (const Parameter* parameter : bucket.parameters) {
        if (!parameter->joins_previous) elements = rounded_up(elements, kAlignment);
        bucket.begins.push_back(elements);
        elements += room_of(*parameter);
    }
    const Parameter& first = *bucket.parameters.front();
    const std::int64_t parts = bucket.whole_state ? 1 : ranks.size;
    const std::int64_t part_elements =
        parts == 1 ? elements : rounded_up(rounded_up(elements, parts) / parts, kAlignment);
    bucket.is_cut = ranks.cut && parts > 1;
    const std::int64_t in_memory = bucket.is_cut ? parts * part_elements : elements;
    const std::int64_t begin_of_part = bucket.is_cut ? ranks.rank * part_elements : 0;
    const std::int64_t updated = bucket.is_cut ? part_elements : elements;
    const auto part_of = [&](const Tensor& flat) {
        return flat.slice(0, begin_of_part, begin_of_part + updated);
    };

    const bool shared = first.dtype == DType::kFloat32 && !first.derived_value;
    const auto zeros = [&](std::int64_t count, DType type) {
        return Tensor::zeros({count}, type, device);
    };
    bucket.value = zeros(in_memory, first.dtype);
    bucket.part_value = part_of(bucket.value);
    bucket.master = shared ? bucket.part_value : zeros(updated, DType::kFloat32);
    bucket.grad = zeros(in_memory, DType::kFloat32);
    bucket.part_grad = part_of(bucket.grad);
    bucket.exp_avg = zeros(updated, DType::kFloat32);
    bucket.exp_avg_sq = zeros(updated, DType::kFloat32);

    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        Parameter* const parameter = bucket.parameters[i];
        const Shape shape = parameter->local_shape();
        const std::int64_t begin = bucket.begins[i], end = begin + num_elements(shape);
        const auto whole = [&](const Tensor& flat) {
            return flat.slice(0, begin, end).view(shape);
        };
        if (bucket.is_cut) {
            parameter->state_cut = {ranks.size, ranks.rank, part_elements, begin};
        } else {
            parameter->state_cut = {};
        }
        const FlatRange held = parameter->held();
        const auto state = [&](const Tensor& flat) {
            if (!bucket.is_cut) return whole(flat);
            const std::int64_t at = held.size() == 0 ? 0 : begin + held.begin - begin_of_part;
            return flat.slice(0, at, at + held.size());
        };
        parameter->value = whole(bucket.value);
        parameter->grad = whole(bucket.grad);
        parameter->master = state(bucket.master);
        parameter->exp_avg = state(bucket.exp_avg);
        parameter->exp_avg_sq = state(bucket.exp_avg_sq);
    }
    const std::int64_t chunks = make_chunks(bucket, elements, part_elements, ranks);
    if (device != Device::kCuda) return chunks;
    const auto count = static_cast<std::int64_t>(bucket.chunks.size());
    const Tensor table = Tensor::uninitialized({count, 4}, DType::kInt32);
    if (count > 0) std::memcpy(table.raw(), bucket.chunks.data(), table.bytes());
    bucket.device_chunks = table.to(device);
    return chunks;
}

}  // namespace

ParameterBuckets::ParameterBuckets(const ParameterList& parameters,
                                   Device device,
                                   std::int64_t elements,
                                   const StateRanks& ranks)
    : device_(device), ranks_(ranks) {
    EVENKEEL_CHECK(ranks.size >= 1 && ranks.rank >= 0 && ranks.rank < ranks.size,
                   "ParameterBuckets", "ranks: got rank ", ranks.rank, " of ", ranks.size);
    ranks_.cut = ranks.cut && ranks.size > 1;
    struct Open {
        std::size_t bucket;
        std::int64_t elements;
    };
    std::map<std::tuple<DType, GradientSum, bool, bool>, Open> open;
    for (std::size_t i = 0; i < parameters.size();) {
        // A parameter and those that join it.
        std::size_t end = i + 1;
        std::int64_t count = room_of(*parameters[i]);
        bool whole_state = parameters[i]->whole_state;
        for (; end < parameters.size() && parameters[end]->joins_previous; ++end) {
            EVENKEEL_CHECK(parameters[end]->dtype == parameters[i]->dtype, "ParameterBuckets",
                           parameters[end]->name, ": got ", name_of(parameters[end]->dtype),
                           ", want ", name_of(parameters[i]->dtype), " as ", parameters[i]->name,
                           " has, which it joins");
            EVENKEEL_CHECK(parameters[end]->derived_value == parameters[i]->derived_value,
                           "ParameterBuckets", parameters[end]->name,
                           ": derived_value differs from that of ", parameters[i]->name,
                           ", which it joins");
            whole_state = whole_state || parameters[end]->whole_state;
            count += room_of(*parameters[end]);
        }
        const std::tuple key{parameters[i]->dtype, parameters[i]->gradient_sum,
                             parameters[i]->derived_value, whole_state};
        auto found = open.find(key);
        if (found == open.end() || found->second.elements + count > elements) {
            buckets_.emplace_back().whole_state = whole_state;
            found = open.insert_or_assign(key, Open{buckets_.size() - 1, 0}).first;
        }
        found->second.elements += count;
        auto& members = buckets_[found->second.bucket].parameters;
        for (; i < end; ++i) members.push_back(parameters[i]);
    }
    for (ParameterBucket& bucket : buckets_) {
        bucket.first_chunk = num_chunks_;
        num_chunks_ += allocate(bucket, device, ranks_);
    }
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
