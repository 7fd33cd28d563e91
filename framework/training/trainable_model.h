// What the training loop needs of a model.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/data/batch.h"
#include "framework/parameter.h"
#include "framework/parameter_buckets.h"
#include "framework/storage/state_shard.h"
#include "framework/training/metrics.h"

namespace evenkeel {

// What a rank contributes to a checkpoint.
struct ModelState {
    std::vector<StateShard>
        shards;                 // its files; of ranks 0 to writers - 1 one at least, of others none
    int writers = 1;            // the same on all ranks
    std::string layout = "{}";  // Manifest::layout; the same on all ranks
};

// What one kind of operations between one group's ranks took of this rank (on CUDA of its GPU).
struct CommunicationPart {
    std::string group, operation;  // "tensor", "all_reduce"
    double exposed = 0.0;          // seconds in which it had nothing to do but wait
    double hidden = 0.0;           // seconds in which they ran beside other work
};

// Every function marked collective is called by all ranks in the same order, and returns the same value on all of them.
class TrainableModel {
  public:
    virtual ~TrainableModel() = default;

    virtual const ParameterList& parameters() = 0;
    virtual const ParameterBuckets& buckets() = 0;  // their memory

    // Forward and backward of this rank's part of a micro-batch: adds loss_scale times the gradient of
    // the mean loss of this batch's tokens with a target (0 where there is none), and loss_scale times that loss to
    // `loss` [1] fp64 on the buckets' device. `last` is true for the step's last micro-batch: gradients
    // are then reduced as they become final, partial ones summed over tensor-parallel ranks as each
    // parameter declares, all averaged over data-parallel ranks. Collective over all ranks. On CUDA the
    // host waits for nothing.
    virtual void forward_backward(const Batch& batch,
                                  double loss_scale,
                                  bool last,
                                  const Tensor& loss) = 0;
    // Forward only: mean loss of the batch's tokens with a target.
    virtual double evaluate(const Batch& batch) = 0;

    // The optimizer has made its step. Collective; waits for nothing on CUDA.
    virtual void finish_update() {}
    // The optimizer has left everything as it was (makes_update): what the step's passes have gathered for
    // finish_update is forgotten. Collective; waits for nothing on CUDA.
    virtual void drop_update() {}

    // `numbers` [2] fp64 on the buckets' device holds this rank's loss; on return, on all ranks, the mean
    // loss and the squared L2 norm of the whole gradient, every element of every global tensor counted
    // once. Collective; waits for nothing on CUDA.
    virtual void reduce_numbers(const Tensor& numbers) = 0;
    // Mean over the data-parallel ranks. Collective.
    virtual double data_parallel_mean(double value) = 0;

    // What talking to other ranks has taken since the last call; called before a step, and after its numbers have been
    // read.
    virtual std::vector<CommunicationPart> take_communication() { return {}; }

    // Per-layer, per-head numbers gathered since the last call, over all ranks. Collective.
    virtual std::vector<MetricTable> head_metrics() = 0;
    // Numbers of the model as a whole, for records. The host may wait.
    virtual std::vector<std::pair<std::string, double>> scalar_metrics() { return {}; }

    // Runs a step's micro-batches on this rank again with every intermediate result checked and names the
    // first layer and tensor that is not finite, forward or backward, on any rank; "" when all are
    // finite. Leaves gradients zero. Collective.
    virtual std::string locate_non_finite(const std::vector<Batch>& batches) = 0;

    // Parameters and optimizer state that this rank writes, as they are now: views of the model's memory.
    virtual ModelState state() = 0;
    // Reads what all ranks have written, in a directory that all see. Collective.
    virtual void load_state(const std::string& directory) = 0;
    // Weights for a new run from a checkpoint, or another directory that the model can read, and
    // with_moments the optimizer state of each parameter that it is there for; others' is zero. Returns
    // whether there was any. Throws when it is of another model or lacks a parameter that is not `optional`.
    // Collective.
    virtual bool load_initial(const std::string& directory, bool with_moments) = 0;
    // JSON that names the model; a checkpoint with another one is refused.
    virtual std::string description() const = 0;
    // The description that an earlier version or other settings have written, as this one would write it: what it lacks
    // has its default, and what does not describe the model says nothing.
    virtual std::string restated(const std::string& description) const { return description; }

    virtual bool is_main_rank() const = 0;  // the one that prints and writes files
    virtual int data_parallel_rank() const = 0;
    virtual int data_parallel_size() const = 0;
    virtual void barrier() = 0;    // collective
    virtual int rank() const = 0;  // among all ranks of the run, main rank 0
    virtual int ranks() const = 0;
    // The largest of what the ranks give, on all of them; not of NaNs. For decisions: small and on the host.
    // Collective.
    virtual double max_over_ranks(double value) = 0;

    // "" when whatever several ranks hold copies of has the same bits on them, else one sentence that names
    // the first parameter that has not, and the ranks. Collective; the host waits.
    virtual std::string replica_drift() { return {}; }

    // Operations of one token forward and backward, nothing of it made again.
    virtual double flops_per_token(std::int64_t seq_len) const = 0;
};

}  // namespace evenkeel
