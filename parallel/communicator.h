// Collective operations over a group of ranks. All ranks of a group call the same operations in the same
// order with the same sizes.
//
// Sums: elements are added in fp32 whatever their float type, in rank order 0, 1, .., size-1, and rounded
// once, so the result is the same bits on every rank and in every run. bf16 travels as bf16. A maximum
// with a NaN in it is NaN. Element counts may exceed 2^31. Every wait has a deadline; when it passes, the
// operation throws kMpi and names the operation, its sequence number and the ranks that did not answer.
// After that the group is of no further use.
//
// Tensors are contiguous and of one type (else kInvalidArgument); they may be empty.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "framework/tensor.h"

namespace evenkeel {

enum class ReduceOp { kSum, kMax };

// What this rank has asked its group to do since the last reset: tests count with it, reports print it.
struct CommunicationCounts {
    std::int64_t all_reduces = 0;
    std::int64_t reduce_scatters = 0;
    std::int64_t all_gathers = 0;
    std::int64_t broadcasts = 0;
    std::int64_t bytes = 0;  // payload: bytes of the full tensor of each operation
};

class Communicator {
  public:
    virtual ~Communicator() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;

    // In place over all ranks. fp32, bf16, int32.
    virtual void all_reduce(const Tensor& tensor, ReduceOp op) = 0;
    // input: [size, ...] contiguous, one block a rank; output: the sum over ranks of block rank().
    virtual void reduce_scatter(const Tensor& input, const Tensor& output) = 0;
    // input: one contiguous block; output: [size, ...], the blocks in rank order. input may be its own
    // block of output.
    virtual void all_gather(const Tensor& input, const Tensor& output) = 0;
    virtual void broadcast(const Tensor& tensor, int root) = 0;
    // Blocks of one rank to another: the tensor's elements, contiguous.
    virtual void send(const Tensor& tensor, int destination) = 0;
    virtual void receive(const Tensor& tensor, int source) = 0;
    virtual void barrier() = 0;

    // Longest wait from now on, here and in groups split off later.
    virtual void set_timeout(double seconds) = 0;

    // Ranks with the same colour form a new group, ordered by their rank here. Collective. The group this
    // one was made from must outlive it.
    virtual std::unique_ptr<Communicator> split(int color) = 0;

    double all_reduce_scalar(double value, ReduceOp op);  // doubles, summed in rank order

    CommunicationCounts& counts() { return counts_; }

  protected:
    virtual void all_reduce_doubles(double* values, std::int64_t count, ReduceOp op) = 0;
    CommunicationCounts counts_;
};

// One process: every collective is the identity. The same code paths as for many ranks.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace evenkeel
