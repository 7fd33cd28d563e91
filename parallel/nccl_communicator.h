// Communication between GPUs through NCCL: one GPU a rank.
//
// What NCCL promises less than communicator.h: sums and means are formed in the order of its rings, the
// same on every rank and in every run on the same machines, but not rank order; sums of bf16 are rounded
// between ranks; a mean multiplies before it adds; and a maximum may drop a NaN.
#pragma once

#include <memory>
#include <string>

#include "parallel/communicator.h"

namespace evenkeel {

// The version of the NCCL that this process runs with, as its header counts it (22809 is 2.28.9); 0 in a
// build without NCCL.
int nccl_version();
std::string nccl_version_text(int version);
// Empty when NCCL of that version will do; else one sentence that says why not.
std::string why_not_nccl(int version);

// The ranks of `host`, a group for tensors on the CPU, as a group for tensors on the current GPU of each.
// Collective. Operations run on a stream of the group's own, of high priority, in the order in which they
// are asked for; a CUDA graph may hold them, and must be gone before the group is. Since ranks of several
// groups share GPUs, all ranks must ask their groups for operations in the same order, too.
//
// The host waits for other ranks here, until NCCL has accepted an operation, and wherever it waits for a
// stream, for set_timeout() seconds at most. Whatever fails aborts every group of this process, and throws
// kNccl, or kMpi for a wait that ran out of time. Throws kNotBuilt without NCCL.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     double timeout_seconds);

// What waits of the host for a stream do now and then (set_wait_guard) while there are such groups: throws
// as above when an operation of another rank has failed, or one of this rank is not done after
// waited_seconds and the time-out has passed.
void check_nccl(double waited_seconds);

}  // namespace evenkeel
