#include "parallel/sharded_state.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace evenkeel {
namespace {

// One file: its name without number and ending, and for each parameter the tensors that it holds.
struct StateFile {
    const char* name;
    bool of_trained;  // only of parameters that are trained
    std::vector<std::pair<const char*, Tensor Parameter::*>> tensors;  // suffix of the name, member
};

const StateFile kModelFile = {"model", false, {{"", &Parameter::master}}};
const StateFile kOptimizerFile = {
    "optimizer",
    true,
    {{".exp_avg", &Parameter::exp_avg}, {".exp_avg_sq", &Parameter::exp_avg_sq}}};

ParameterList parameters_in(const StateFile& file, const ParameterList& all) {
    ParameterList list;
    for (Parameter* parameter : all) {
        if (parameter->trained || !file.of_trained) list.push_back(parameter);
    }
    return list;
}

// The global tensor on the CPU of rank 0 of the group, put together from the owners' pieces; undefined
// elsewhere.
Tensor gather(Communicator& group, const Parameter& parameter, const Tensor& on_device) {
    const Sharding& sharding = parameter.sharding;
    if (group.rank() > 0) {
        if (sharding.kind != Sharding::Kind::kReplicated && sharding.is_owner() &&
            on_device.numel() > 0) {
            group.send(on_device.to(Device::kCpu), 0);
        }
        return Tensor();
    }
    const Tensor local = on_device.to(Device::kCpu);
    if (sharding.kind == Sharding::Kind::kReplicated) return local;
    const std::int64_t extent = parameter.global_shape[sharding.dim];
    if (local.size(sharding.dim) == extent) return local;
    const Tensor whole = Tensor::uninitialized(parameter.global_shape, DType::kFloat32);
    whole.slice(sharding.dim, sharding.begin, sharding.end).copy_from(local);
    const int pieces = group.size() / sharding.replicas;
    Shape shape = local.shape();
    for (int index = 1; index < pieces; ++index) {
        const PieceRange range = piece_range(extent, pieces, index);
        shape[sharding.dim] = range.size();
        const Tensor piece = Tensor::uninitialized(shape, DType::kFloat32);
        if (piece.numel() > 0) group.receive(piece, index * sharding.replicas);
        whole.slice(sharding.dim, range.begin, range.end).copy_from(piece);
    }
    return whole;
}

bool any_is_cut(const ParameterList& parameters) {
    return std::any_of(parameters.begin(), parameters.end(),
                       [](const Parameter* parameter) { return parameter->is_cut(); });
}

// Where what this rank holds of a parameter's master and moments lies.
PieceExtent extent_of(const Parameter& parameter) {
    const Sharding& sharding = parameter.sharding;
    PieceExtent extent{sharding.dim, sharding.begin, sharding.end, 0, false};
    if (sharding.kind == Sharding::Kind::kReplicated) {
        extent = {0, 0, parameter.global_shape.front(), 0, false};
    }
    if (parameter.is_cut()) {
        extent.first = parameter.held().begin;
        extent.is_run = true;
    }
    return extent;
}

StateShard shard_of(const ProcessGrid& grid, const ParameterList& all, const StateFile& file) {
    StateShard shard;
    for (const Parameter* parameter : parameters_in(file, all)) {
        const bool writes = parameter->is_cut() || grid.dp_rank() == 0;
        if (!writes || !parameter->sharding.is_owner()) continue;
        for (const auto& [suffix, member] : file.tensors) {
            const Tensor& tensor = parameter->*member;
            if (tensor.numel() == 0) continue;
            shard.pieces.push_back(
                {parameter->name + suffix, parameter->global_shape, extent_of(*parameter), tensor});
        }
    }
    return shard;
}

// A few names for a message.
std::string listed(const std::vector<std::string>& names) {
    constexpr std::size_t kShown = 5;
    std::string text;
    for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
        text += (i == 0 ? "\"" : ", \"") + names[i] + "\"";
    }
    if (names.size() > kShown) text += concat(" and ", names.size() - kShown, " more");
    return text;
}

using MayMiss = bool (*)(const Parameter&);
bool none_may_miss(const Parameter&) { return false; }
bool optional_may_miss(const Parameter& parameter) { return parameter.optional; }
bool all_may_miss(const Parameter&) { return true; }

// Whether to read a parameter: not if it may be missing and is.
bool is_read(const TensorSource& source,
             const Parameter& parameter,
             const StateFile& file,
             MayMiss may_miss) {
    if (!may_miss(parameter)) return true;
    return std::any_of(file.tensors.begin(), file.tensors.end(), [&](const auto& tensor) {
        return source.contains(parameter.name + tensor.first);
    });
}

// Throws unless the source holds exactly the tensors of these parameters, in their shapes.
void check_source(const TensorSource& source,
                  const ParameterList& all,
                  const StateFile& file,
                  MayMiss may_miss) {
    constexpr const char* kOp = "load_parameters";
    std::set<std::string> wanted;
    std::vector<std::string> missing, surplus;
    for (const Parameter* parameter : parameters_in(file, all)) {
        if (!is_read(source, *parameter, file, may_miss)) continue;
        for (const auto& [suffix, member] : file.tensors) {
            const std::string name = parameter->name + suffix;
            wanted.insert(name);
            if (!source.contains(name)) missing.push_back(name);
        }
    }
    for (const std::string& name : source.names()) {
        if (!wanted.contains(name)) surplus.push_back(name);
    }
    EVENKEEL_CHECK_CODE(missing.empty() && surplus.empty(), ErrorCode::kIo, kOp, source.origin(),
                        ": the weights are of another model:",
                        missing.empty() ? "" : " they lack " + listed(missing),
                        missing.empty() || surplus.empty() ? "" : ", and",
                        surplus.empty() ? "" : " the model has no " + listed(surplus));
    for (const Parameter* parameter : parameters_in(file, all)) {
        for (const auto& [suffix, member] : file.tensors) {
            const std::string name = parameter->name + suffix;
            if (!wanted.contains(name)) continue;
            const Shape shape = source.shape(name);
            EVENKEEL_CHECK_CODE(shape == parameter->global_shape, ErrorCode::kIo, kOp,
                                source.origin(), ": tensor \"", name, "\": got shape ",
                                to_string(shape), ", want ", to_string(parameter->global_shape));
        }
    }
}

// fp32, on the CPU. Rows of an embedding that no text has would carry a NaN from checkpoint to checkpoint, unseen.
void check_numbers(const Tensor& tensor,
                   const std::string& name,
                   const StateFile& file,
                   bool squares) {
    const auto* const data = tensor.data<float>();
    const std::int64_t count = tensor.numel();
    bool finite = true, negative = false;
#pragma omp parallel for reduction(&& : finite) reduction(|| : negative)
    for (std::int64_t i = 0; i < count; ++i) {
        finite = finite && std::isfinite(data[i]);
        negative = negative || data[i] < 0.0f;
    }
    EVENKEEL_CHECK_CODE(
        finite && !(squares && negative), ErrorCode::kNonFinite, "load_parameters",
        file.of_trained ? "the optimizer's " : "the weight ", name,
        finite ? " holds a negative mean of squares" : " holds a NaN or an infinity",
        "; start from an earlier checkpoint");
}

void load_source(const TensorSource& source, const ParameterList& all, const StateFile& file) {
    for (const Parameter* parameter : parameters_in(file, all)) {
        const Sharding& sharding = parameter->sharding;
        const bool whole = sharding.kind == Sharding::Kind::kReplicated;
        for (const auto& [suffix, member] : file.tensors) {
            const std::string name = parameter->name + suffix;
            if (!source.contains(name)) continue;  // check_source has allowed it
            const Tensor& tensor = parameter->*member;
            if (num_elements(parameter->local_shape()) == 0) continue;
            const bool direct = tensor.device() == Device::kCpu && !parameter->is_cut();
            const Tensor landing =
                direct ? tensor : Tensor::uninitialized(parameter->local_shape(), tensor.dtype());
            source.read_slice(name, whole ? 0 : sharding.dim, whole ? 0 : sharding.begin,
                              whole ? parameter->global_shape[0] : sharding.end, landing);
            check_numbers(landing, name, file, member == &Parameter::exp_avg_sq);
            if (direct) continue;
            if (member == &Parameter::master) {
                parameter->assign(landing);
            } else {
                parameter->put_held(landing, tensor);
            }
        }
    }
}

void refresh_values(const ParameterList& parameters) {
    for (const Parameter* parameter : parameters) parameter->refresh_value();
}

}  // namespace

Tensor gather_parameter(const ProcessGrid& grid, const Parameter& parameter, const Tensor& local) {
    return gather(grid.tensor().host(), parameter, local);
}

int state_writers(const ProcessGrid& grid, const ParameterList& parameters) {
    return grid.tp_size() * (any_is_cut(parameters) ? grid.dp_size() : 1);
}

std::vector<StateShard> local_state(const ProcessGrid& grid,
                                    const ParameterList& parameters,
                                    const SafetensorsMetadata& metadata) {
    std::vector<StateShard> shards;
    const int writers = state_writers(grid, parameters);
    const int index = grid.dp_rank() * grid.tp_size() + grid.tp_rank();
    if (index >= writers) return shards;
    for (const StateFile* file : {&kModelFile, &kOptimizerFile}) {
        shards.push_back(shard_of(grid, parameters, *file));
        shards.back().file = shard_name(file->name, index, writers);
        shards.back().metadata = metadata;
    }
    return shards;
}

void save_parameters(const ProcessGrid& grid,
                     const ParameterList& parameters,
                     const std::string& directory,
                     const SafetensorsMetadata& metadata) {
    for (const StateShard& shard : local_state(grid, parameters, metadata)) {
        write_shard(directory, shard);
    }
    grid.world().barrier();
}

void load_parameters(const ParameterList& parameters, const TensorSource& weights) {
    check_source(weights, parameters, kModelFile, optional_may_miss);
    load_source(weights, parameters, kModelFile);
    refresh_values(parameters);
}

void load_parameters(const ProcessGrid&,
                     const ParameterList& parameters,
                     const std::string& directory,
                     bool with_optimizer) {
    const auto model = open_state(directory, kModelFile.name);
    check_source(*model, parameters, kModelFile, none_may_miss);
    if (with_optimizer) {
        const auto optimizer = open_state(directory, kOptimizerFile.name);
        check_source(*optimizer, parameters, kOptimizerFile, none_may_miss);
        load_source(*optimizer, parameters, kOptimizerFile);
    }
    load_source(*model, parameters, kModelFile);
    refresh_values(parameters);
}

bool load_moments(const ParameterList& parameters, const std::string& directory) {
    std::unique_ptr<TensorSource> optimizer;
    if (has_state(directory, kOptimizerFile.name)) {
        optimizer = open_state(directory, kOptimizerFile.name);
        check_source(*optimizer, parameters, kOptimizerFile, all_may_miss);
    }
    for (const Parameter* parameter : parameters) {
        parameter->exp_avg.zero();
        parameter->exp_avg_sq.zero();
    }
    if (!optimizer) return false;
    load_source(*optimizer, parameters, kOptimizerFile);
    return !optimizer->names().empty();
}

}  // namespace evenkeel
