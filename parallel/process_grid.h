// Ranks as a grid with a tensor-parallel (TP) and a data-parallel (DP) axis. TP ranks are neighbours:
// world rank = dp_rank * tp_size + tp_rank.
//
// The groups of the two axes are for tensors of one device; the world is always for tensors of the CPU.
#pragma once

#include <memory>

#include "framework/config.h"
#include "framework/parameter_buckets.h"
#include "parallel/communicator.h"
#include "parallel/gpu_assignment.h"

namespace evenkeel {

struct ParallelConfig {
    std::int64_t tensor_parallel = 1;
    std::int64_t data_parallel = 0;  // 0: all ranks there are, divided by tensor_parallel
    bool sequence_parallel = false;  // see sequence_region.h; nothing with one tensor-parallel rank
    double timeout_seconds = 300.0;  // longest wait for other ranks
    Communication communication = Communication::kNccl;  // between GPUs
    // 1: each data-parallel rank has master weights and moments of its part of each parameter bucket only
    // (ParameterBuckets), and updates that; 0: all have all. Results have the same bits.
    std::int64_t zero_stage = 0;
    // Row-parallel products in forward passes are formed of so many parts, summed in one order, so that results
    // in fp32 on the CPU have the same bits at every tensor-parallel size that divides it. Slower; no setting of
    // a run. 0: not.
    std::int64_t virtual_shards = 0;
    void visit_fields(ConfigVisitor& v);
};

class ProcessGrid {
  public:
    // Collective over `world`, which must outlive the grid. Throws kConfig unless tensor_parallel x
    // data_parallel is the number of ranks; the message says how many ranks to start. For CUDA it takes
    // this rank's GPU first (assign_gpu), so that tensors made earlier may be on another one.
    ProcessGrid(Communicator& world, const ParallelConfig& config, Device device = Device::kCpu);

    Device device() const { return device_; }
    const GpuAssignment& gpu() const { return gpu_; }  // of a grid for CUDA
    Communicator& world() const { return world_; }
    Communicator& tensor() const { return *tensor_; }
    Communicator& data() const { return *data_; }
    // The TP group for tensors on the CPU: for checkpoints.
    Communicator& host_tensor() const { return tensor_->host(); }
    int tp_rank() const { return tensor_->rank(); }
    int tp_size() const { return tensor_->size(); }
    int dp_rank() const { return data_->rank(); }
    int dp_size() const { return data_->size(); }
    // How the optimizer's state lies on the data-parallel ranks.
    StateRanks state_ranks() const { return {dp_size(), dp_rank(), zero_stage_ == 1}; }
    bool sequence_parallel() const { return sequence_parallel_; }
    // ParallelConfig::virtual_shards over tp_size(): the parts that this rank forms; 0: not asked for.
    std::int64_t local_shards() const { return local_shards_; }
    // The TP ranks that hold the same KV head when there are more ranks than KV heads; a group of one
    // otherwise. Collective over the TP group the first time it is asked for a given number of heads.
    Communicator& kv_replicas(std::int64_t num_kv_heads) const;

  private:
    std::unique_ptr<Communicator> on_device(std::unique_ptr<Communicator> host) const;

    Communicator& world_;
    Device device_;
    Communication communication_;
    double timeout_seconds_;
    std::int64_t zero_stage_;
    bool sequence_parallel_ = false;
    std::int64_t local_shards_ = 0;
    GpuAssignment gpu_;
    std::unique_ptr<Communicator> tensor_;
    std::unique_ptr<Communicator> data_;
    mutable std::unique_ptr<Communicator> kv_replicas_;
    mutable std::int64_t kv_heads_ = 0;
};

}  // namespace evenkeel
