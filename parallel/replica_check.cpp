#include "parallel/replica_check.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "parallel/replica_hash.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "replica_drift";

// What each parameter has, in this order.
constexpr const char* kTensorNames[] = {"value", "master weights", "first moments",
                                        "second moments"};
constexpr std::size_t kTensors = std::size(kTensorNames);

using Hashes = std::vector<std::uint64_t>;  // kTensors a parameter

// Odd multipliers and shifts are bijections, so different bits at one index give different results. The
// constants are SplitMix64's (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
std::uint64_t hash_element(std::uint64_t bits, std::uint64_t index) {
    std::uint64_t z = bits + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    return z ^ (z >> 27);
}

template <typename Word>
std::uint64_t hash_words(const std::byte* data, std::int64_t count, std::int64_t first) {
    const Word* const words = reinterpret_cast<const Word*>(data);
    std::uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static) if (count > (1 << 16))
    for (std::int64_t i = 0; i < count; ++i) {
        sum += hash_element(words[i], static_cast<std::uint64_t>(first + i));
    }
    return sum;
}

void check_hashable(const Tensor& tensor) {
    EVENKEEL_CHECK(tensor.is_contiguous(), kOp, "tensor: got strides ", to_string(tensor.strides()),
                   ", want a contiguous tensor");
    const std::size_t size = size_of(tensor.dtype());
    EVENKEEL_CHECK(size == 2 || size == 4, kOp, "tensor: got ", name_of(tensor.dtype()),
                   ", want elements of 2 or 4 bytes");
}

// Reads what was hashed on the GPU in one go.
class Hasher {
  public:
    Hasher(std::size_t count, Device device) : hashes_(count) {
        if (device == Device::kCpu) return;
        on_gpu_ =
            Tensor::zeros({static_cast<std::int64_t>(count), 2}, DType::kInt32, Device::kCuda);
    }
    void add(std::size_t slot, const Tensor& tensor, std::int64_t first) {
        if (!tensor.defined() || tensor.numel() == 0) return;
        check_hashable(tensor);
        if (tensor.device() == Device::kCuda) {
            cuda::add_hash(tensor, first, reinterpret_cast<std::uint64_t*>(on_gpu_.raw()) + slot);
        } else if (size_of(tensor.dtype()) == 2) {
            hashes_[slot] += hash_words<std::uint16_t>(tensor.raw(), tensor.numel(), first);
        } else {
            hashes_[slot] += hash_words<std::uint32_t>(tensor.raw(), tensor.numel(), first);
        }
    }
    Hashes take() {
        if (on_gpu_.defined()) {
            const Tensor read = on_gpu_.to(Device::kCpu);
            std::memcpy(hashes_.data(), read.raw(), read.bytes());
        }
        return std::move(hashes_);
    }

  private:
    Hashes hashes_;
    Tensor on_gpu_;
};

Hashes hash_all(const ParameterList& parameters, Device device) {
    Hasher hasher(parameters.size() * kTensors, device);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
        const Parameter& parameter = *parameters[p];
        const bool own_master = parameter.dtype != DType::kFloat32 || parameter.derived_value;
        const std::int64_t first = parameter.is_cut() ? parameter.held().begin : 0;
        hasher.add(p * kTensors, parameter.value, 0);
        if (own_master) hasher.add(p * kTensors + 1, parameter.master, first);
        if (!parameter.trained) continue;
        hasher.add(p * kTensors + 2, parameter.exp_avg, first);
        hasher.add(p * kTensors + 3, parameter.exp_avg_sq, first);
    }
    return hasher.take();
}

// Whether data-parallel ranks have parts of it rather than copies.
bool is_cut(const ParameterList& parameters, std::size_t slot) {
    return parameters[slot / kTensors]->is_cut() && slot % kTensors != 0;
}

// The same with the parts of what is cut added up, as if each rank had all.
Hashes with_parts_summed(const ProcessGrid& grid, const ParameterList& parameters, Hashes hashes) {
    std::vector<std::size_t> slots;
    for (std::size_t slot = 0; slot < hashes.size(); ++slot) {
        if (is_cut(parameters, slot)) slots.push_back(slot);
    }
    if (slots.empty()) return hashes;
    Communicator& host = grid.data().host();
    const auto words = static_cast<std::int64_t>(2 * slots.size());
    const Tensor mine = Tensor::uninitialized({words}, DType::kInt32);
    const Tensor all = Tensor::uninitialized({host.size(), words}, DType::kInt32);
    for (std::size_t i = 0; i < slots.size(); ++i) {
        std::memcpy(mine.raw() + i * sizeof(std::uint64_t), &hashes[slots[i]],
                    sizeof(std::uint64_t));
    }
    host.all_gather(mine, all);
    for (std::size_t i = 0; i < slots.size(); ++i) {
        std::uint64_t sum = 0;
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(host.size()); ++rank) {
            std::uint64_t part = 0;
            std::memcpy(&part, all.raw() + (rank * slots.size() + i) * sizeof part, sizeof part);
            sum += part;
        }
        hashes[slots[i]] = sum;
    }
    return hashes;
}

std::string list_of(const std::vector<int>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        text += concat(i == 0 ? "" : ", ", ranks[i]);
    }
    return text;
}

// Who of the group holds what, at one slot: the sides are told from one another, not which is right.
std::string sides(Communicator& host, std::uint64_t mine) {
    const Tensor one = Tensor::uninitialized({2}, DType::kInt32);
    const Tensor all = Tensor::uninitialized({host.size(), 2}, DType::kInt32);
    std::memcpy(one.raw(), &mine, sizeof mine);
    host.all_gather(one, all);
    Hashes hashes(static_cast<std::size_t>(host.size()));
    std::memcpy(hashes.data(), all.raw(), all.bytes());
    std::vector<std::pair<std::uint64_t, std::vector<int>>> found;
    for (int member = 0; member < host.size(); ++member) {
        const std::uint64_t hash = hashes[static_cast<std::size_t>(member)];
        auto at = std::find_if(found.begin(), found.end(),
                               [&](const auto& side) { return side.first == hash; });
        if (at == found.end()) at = found.insert(found.end(), {hash, {}});
        at->second.push_back(host.job_rank(member));
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
        return a.second.size() < b.second.size();  // the few are the likelier to be wrong
    });
    std::string text = list_of(found.front().second);
    for (std::size_t i = 1; i < found.size(); ++i) {
        text += concat(" against ", list_of(found[i].second));
    }
    return text;
}

// The first of these slots at which the group's ranks differ, or -1. Two maxima tell: of the words and of
// their complements, whose maximum is the complement of the words' minimum.
std::int64_t first_difference(Communicator& host,
                              const Hashes& hashes,
                              const std::vector<std::size_t>& slots) {
    const auto words = static_cast<std::int64_t>(2 * slots.size());
    if (words == 0) return -1;
    const Tensor both = Tensor::uninitialized({2, words}, DType::kInt32);
    std::int32_t* const up = both.data<std::int32_t>();
    std::int32_t* const down = up + words;
    for (std::size_t i = 0; i < slots.size(); ++i) {
        std::memcpy(up + 2 * i, &hashes[slots[i]], sizeof(std::uint64_t));
    }
    for (std::int64_t i = 0; i < words; ++i) down[i] = ~up[i];
    host.all_reduce(both, ReduceOp::kMax);
    for (std::int64_t i = 0; i < words; ++i) {
        if (up[i] != ~down[i])
            return static_cast<std::int64_t>(slots[static_cast<std::size_t>(i / 2)]);
    }
    return -1;
}

std::string compare(Communicator& group,
                    const char* among,
                    const ParameterList& parameters,
                    const Hashes& hashes,
                    const std::vector<std::size_t>& slots) {
    if (group.size() == 1) return "";
    Communicator& host = group.host();
    const std::int64_t slot = first_difference(host, hashes, slots);
    if (slot < 0) return "";
    const std::size_t at = static_cast<std::size_t>(slot);
    return concat(parameters[at / kTensors]->name, ": ", kTensorNames[at % kTensors], " differ",
                  at % kTensors == 0 ? "s" : "", " between ", among, ": ", sides(host, hashes[at]));
}

// The first finding of the lowest rank that has it, on all ranks.
std::string share(Communicator& world, const std::vector<std::string>& findings) {
    const std::size_t found = static_cast<std::size_t>(
        std::find_if(findings.begin(), findings.end(),
                     [](const std::string& finding) { return !finding.empty(); }) -
        findings.begin());
    const double size = world.size();
    const double first = -world.all_reduce_scalar(
        -(static_cast<double>(found) * size + world.rank()), ReduceOp::kMax);
    if (first >= static_cast<double>(findings.size()) * size) return "";
    const int root = static_cast<int>(first) % world.size();
    const std::string mine = found < findings.size() ? findings[found] : std::string();
    const auto length = static_cast<std::int64_t>(world.all_reduce_scalar(
        world.rank() == root ? static_cast<double>(mine.size()) : 0.0, ReduceOp::kMax));
    const Tensor text = Tensor::zeros({(length + 3) / 4}, DType::kInt32);
    if (world.rank() == root) std::memcpy(text.raw(), mine.data(), mine.size());
    world.broadcast(text, root);
    return std::string(reinterpret_cast<const char*>(text.raw()), static_cast<std::size_t>(length));
}

}  // namespace

std::uint64_t hash_elements(const Tensor& tensor, std::int64_t first) {
    Hasher hasher(1, tensor.device());
    hasher.add(0, tensor, first);
    return hasher.take().front();
}

std::string replica_drift(const ProcessGrid& grid,
                          const ParameterList& parameters,
                          std::int64_t num_kv_heads) {
    if (grid.world().size() == 1) return "";
    const Hashes hashes = hash_all(parameters, grid.device());
    const Hashes sums = with_parts_summed(grid, parameters, hashes);
    std::vector<std::size_t> copies, whole, by_kv_head;
    for (std::size_t slot = 0; slot < hashes.size(); ++slot) {
        const Sharding& sharding = parameters[slot / kTensors]->sharding;
        if (!is_cut(parameters, slot)) copies.push_back(slot);
        if (sharding.kind == Sharding::Kind::kReplicated) whole.push_back(slot);
        if (sharding.kind == Sharding::Kind::kReplicatedInGroup) by_kv_head.push_back(slot);
    }
    // Every group of ranks takes part in all three, whatever another has found.
    return share(grid.world(),
                 {compare(grid.tensor(), "tensor-parallel ranks", parameters, sums, whole),
                  compare(grid.kv_replicas(num_kv_heads), "the ranks of a KV head", parameters,
                          sums, by_kv_head),
                  compare(grid.data(), "data-parallel ranks", parameters, hashes, copies)});
}

}  // namespace evenkeel
