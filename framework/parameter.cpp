#include "framework/parameter.h"

#include <algorithm>

#include "framework/rng.h"

namespace evenkeel {

PieceRange piece_range(std::int64_t extent, std::int64_t pieces, std::int64_t index) {
    const std::int64_t least = extent / pieces, longer = extent % pieces;
    const auto begin = [&](std::int64_t piece) { return least * piece + std::min(piece, longer); };
    return {begin(index), begin(index + 1)};
}

Sharding Sharding::replicated(int rank, int size) {
    Sharding sharding;
    sharding.replicas = size;
    sharding.replica_index = rank;
    return sharding;
}

Sharding Sharding::sharded(int dim, std::int64_t extent, std::int64_t unit, int rank, int size) {
    EVENKEEL_CHECK(extent % (unit * size) == 0, "Sharding", "extent: got ", extent,
                   ", want a multiple of ", unit * size, " (", size, " tensor-parallel ranks x ",
                   unit, ")");
    return sharded_unevenly(dim, extent, rank, size);
}

Sharding Sharding::sharded_unevenly(int dim, std::int64_t extent, int rank, int size) {
    const PieceRange piece = piece_range(extent, size, rank);
    Sharding sharding;
    sharding.kind = Kind::kSharded;
    sharding.dim = dim;
    sharding.begin = piece.begin;
    sharding.end = piece.end;
    sharding.longest = piece_range(extent, size, 0).size();
    return sharding;
}

Sharding Sharding::sharded_by_head(
    int dim, std::int64_t heads, std::int64_t unit, int rank, int size) {
    if (heads >= size) {
        EVENKEEL_CHECK(heads % size == 0, "Sharding", "heads: got ", heads, ", want a multiple of ",
                       size, " tensor-parallel ranks");
        return sharded(dim, heads * unit, unit, rank, size);
    }
    EVENKEEL_CHECK(heads > 0 && size % heads == 0, "Sharding", "heads: got ", heads,
                   ", want a divisor or a multiple of ", size, " tensor-parallel ranks");
    Sharding sharding;
    sharding.kind = Kind::kReplicatedInGroup;
    sharding.dim = dim;
    sharding.replicas = static_cast<int>(size / heads);
    sharding.replica_index = rank % sharding.replicas;
    sharding.begin = rank / sharding.replicas * unit;
    sharding.end = sharding.begin + unit;
    return sharding;
}

Shape Parameter::local_shape() const {
    Shape shape = global_shape;
    if (sharding.kind != Sharding::Kind::kReplicated) {
        shape[sharding.dim] = sharding.end - sharding.begin;
    }
    return shape;
}

FlatRange Parameter::held_by(int part) const {
    const std::int64_t count = num_elements(local_shape());
    if (!is_cut()) return {0, count};
    const auto cut = [&](std::int64_t index) {
        return std::clamp<std::int64_t>(index * state_cut.part_elements - state_cut.offset, 0,
                                        count);
    };
    return {cut(part), cut(part + 1)};
}

namespace {

bool value_is_master(const Parameter& parameter) {
    return parameter.dtype == DType::kFloat32 && !parameter.derived_value;
}

// The same elements of a contiguous tensor of local shape, in master's shape.
Tensor held_part(const Parameter& parameter, const Tensor& whole) {
    if (!parameter.is_cut()) return whole;
    const FlatRange range = parameter.held();
    return whole.view({whole.numel()}).slice(0, range.begin, range.end);
}

}  // namespace

void Parameter::assign(const Tensor& weights) const {
    check_shape("Parameter", name.c_str(), weights, local_shape());
    value.copy_from(weights);
    if (!value_is_master(*this)) put_held(weights, master);
}

void Parameter::put_held(const Tensor& whole, const Tensor& held) const {
    if (held.numel() > 0) held.copy_from(held_part(*this, whole.contiguous()));
}

void Parameter::refresh_value() const {
    if (value_is_master(*this) || master.numel() == 0) return;
    held_part(*this, value).copy_from(master);
}

Parameter declare_parameter(const std::string& name,
                            const Shape& global_shape,
                            const Sharding& sharding,
                            DType dtype) {
    EVENKEEL_CHECK(!global_shape.empty(), "declare_parameter", name,
                   ": got shape [], want at least one dimension ([1] for a scalar)");
    EVENKEEL_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16, "declare_parameter", name,
                   ": got ", name_of(dtype), ", want fp32 or bf16");
    Parameter parameter;
    parameter.name = name;
    parameter.global_shape = global_shape;
    parameter.sharding = sharding;
    parameter.dtype = dtype;
    return parameter;
}

void init_normal(const Parameter& parameter, double standard_deviation, std::uint64_t seed) {
    const CounterRng rng(seed, purpose(parameter.name));
    const Shape& global = parameter.global_shape;
    const bool whole = parameter.sharding.kind == Sharding::Kind::kReplicated;
    const int dim = whole ? 0 : parameter.sharding.dim;
    const std::int64_t begin = whole ? 0 : parameter.sharding.begin;
    std::int64_t outer = 1, inner = 1;
    for (int i = 0; i < dim; ++i) outer *= global[i];
    for (std::size_t i = dim + 1; i < global.size(); ++i) inner *= global[i];
    const std::int64_t local_extent = parameter.local_shape()[dim];
    const Tensor weights =
        Tensor::uninitialized(parameter.local_shape(), DType::kFloat32);  // made on the CPU
    float* weight = weights.data<float>();
    const std::int64_t run =
        local_extent * inner;  // elements that follow one another in the global tensor
#pragma omp parallel for
    for (std::int64_t i = 0; i < outer * run; ++i) {
        const std::int64_t at = (i / run * global[dim] + begin) * inner + i % run;
        weight[i] = static_cast<float>(standard_deviation * rng.normal(at));
    }
    parameter.assign(weights);
}

void init_constant(const Parameter& parameter, float value) {
    parameter.value.fill(value);
    if (parameter.master.numel() > 0) parameter.master.fill(value);
}

}  // namespace evenkeel
