#include "parallel/process_grid.h"

#include "parallel/nccl_communicator.h"
#include "parallel/staged_communicator.h"

namespace evenkeel {
namespace {

constexpr const char* kCommunicationNames[] = {"nccl", "staged"};

}  // namespace

void ParallelConfig::visit_fields(ConfigVisitor& v) {
    v.field("tensor_parallel", tensor_parallel,
            "ranks that share every layer (heads, MLP width, vocabulary)");
    v.field("data_parallel", data_parallel,
            "copies of the model that split the batch; 0: all ranks divided by tensor_parallel");
    v.field("sequence_parallel", sequence_parallel,
            "tensor-parallel ranks share the tokens between products (norms, residual adds), which "
            "takes less memory");
    v.field("timeout_seconds", timeout_seconds,
            "longest wait for another rank before the job ends with an error");
    v.choice("communication", communication, kCommunicationNames,
             "between GPUs: nccl, one GPU a rank; staged through the memory of the CPU, for ranks "
             "that share a GPU");
    v.field("zero_stage", zero_stage,
            "1: master weights and moments of the optimizer are cut over the data-parallel ranks "
            "(ZeRO); 0: every rank has all of them");
}

namespace {

constexpr const char* kOp = "ProcessGrid";
constexpr std::int64_t kMostRanks = 1 << 30;  // along one axis; the product of two fits 63 bits

void check_positive(const ParallelConfig& config) {
    EVENKEEL_CHECK_CODE(config.tensor_parallel >= 1, ErrorCode::kConfig, kOp,
                        "parallel.tensor_parallel: got ", config.tensor_parallel,
                        ", want 1 or more");
    EVENKEEL_CHECK_CODE(config.data_parallel >= 0, ErrorCode::kConfig, kOp,
                        "parallel.data_parallel: got ", config.data_parallel, ", want 0 or more");
    for (const std::int64_t size : {config.tensor_parallel, config.data_parallel}) {
        EVENKEEL_CHECK_CODE(size <= kMostRanks, ErrorCode::kConfig, kOp,
                            "parallel.tensor_parallel, parallel.data_parallel: got ", size,
                            ", want at most 2^30");
    }
    EVENKEEL_CHECK_CODE(config.timeout_seconds > 0.0, ErrorCode::kConfig, kOp,
                        "parallel.timeout_seconds: got ", config.timeout_seconds,
                        ", want more than 0");
    EVENKEEL_CHECK_CODE(config.zero_stage == 0 || config.zero_stage == 1, ErrorCode::kConfig, kOp,
                        "parallel.zero_stage: got ", config.zero_stage, ", want 0 or 1");
}

// The data-parallel size, once both axes multiply to the number of ranks.
int checked_data_parallel(std::int64_t ranks, const ParallelConfig& config) {
    check_positive(config);
    const std::int64_t tp = config.tensor_parallel;
    if (config.data_parallel == 0) {
        EVENKEEL_CHECK_CODE(ranks % tp == 0, ErrorCode::kConfig, kOp, "tensor_parallel = ", tp,
                            ", but ", ranks, ranks == 1 ? " rank was" : " ranks were",
                            " started: use mpirun -np ", (ranks / tp + 1) * tp,
                            " or set parallel.tensor_parallel=", ranks);
        return static_cast<int>(ranks / tp);
    }
    const std::int64_t wanted = tp * config.data_parallel;
    EVENKEEL_CHECK_CODE(
        wanted == ranks, ErrorCode::kConfig, kOp, "tensor_parallel x data_parallel = ", tp, " x ",
        config.data_parallel, " = ", wanted, ", but ", ranks,
        ranks == 1 ? " rank was" : " ranks were", " started: use mpirun -np ", wanted,
        ranks % tp == 0 ? concat(" or set parallel.data_parallel=", ranks / tp)
        : ranks % config.data_parallel == 0
            ? concat(" or set parallel.tensor_parallel=", ranks / config.data_parallel)
            : std::string());
    return static_cast<int>(config.data_parallel);
}

}  // namespace

ProcessGrid::ProcessGrid(Communicator& world, const ParallelConfig& config, Device device)
    : world_(world),
      device_(device),
      communication_(config.communication),
      timeout_seconds_(config.timeout_seconds),
      zero_stage_(config.zero_stage) {
    checked_data_parallel(world.size(), config);
    world.set_timeout(config.timeout_seconds);
    if (device == Device::kCuda) gpu_ = assign_gpu(world, communication_);
    EVENKEEL_CHECK(config.virtual_shards % config.tensor_parallel == 0 &&
                       (config.virtual_shards == 0 || device == Device::kCpu),
                   kOp, "virtual_shards: got ", config.virtual_shards, " on ", name_of(device),
                   ", want a multiple of ", config.tensor_parallel, " on the CPU");
    sequence_parallel_ =
        config.sequence_parallel && config.tensor_parallel > 1 && config.virtual_shards == 0;
    local_shards_ = config.virtual_shards / config.tensor_parallel;
    const int tp = static_cast<int>(config.tensor_parallel);
    tensor_ = on_device(world.split(world.rank() / tp, "tensor"));
    data_ = on_device(world.split(world.rank() % tp, "data"));
}

// The group's ranks as a group for tensors of the grid's device.
std::unique_ptr<Communicator> ProcessGrid::on_device(std::unique_ptr<Communicator> host) const {
    if (device_ == Device::kCpu) return host;
    if (host->size() == 1) return make_single_communicator(device_);
    switch (communication_) {
        case Communication::kNccl:
            return make_nccl_communicator(std::move(host), timeout_seconds_);
        case Communication::kStaged:
            return make_staged_communicator(std::move(host));
    }
    return nullptr;
}

Communicator& ProcessGrid::kv_replicas(std::int64_t num_kv_heads) const {
    EVENKEEL_CHECK(num_kv_heads > 0, "kv_replicas", "num_kv_heads: got ", num_kv_heads,
                   ", want 1 or more");
    if (kv_replicas_ && kv_heads_ == num_kv_heads) return *kv_replicas_;
    if (num_kv_heads >= tp_size()) {
        kv_replicas_ = make_single_communicator(device());
    } else {
        EVENKEEL_CHECK(tp_size() % num_kv_heads == 0, "kv_replicas", "num_kv_heads: got ",
                       num_kv_heads, ", want a divisor or a multiple of ", tp_size(),
                       " tensor-parallel ranks");
        const int replicas = tp_size() / static_cast<int>(num_kv_heads);
        kv_replicas_ = tensor_->split(tp_rank() / replicas, "kv_replicas");
    }
    kv_heads_ = num_kv_heads;
    return *kv_replicas_;
}

}  // namespace evenkeel
