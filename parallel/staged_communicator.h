// Communication between GPUs through the memory of the CPU. Slower than NCCL by far, but several ranks may
// share one GPU with it, and it needs no NCCL: for a machine with fewer GPUs than ranks, and for tests.
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace evenkeel {

// The ranks of `host`, a group for tensors on the CPU, as a group for tensors on this rank's GPU. Every
// operation waits for the current stream, talks through `host` and copies back: all of that on the host,
// before it returns, so nothing overlaps and no CUDA graph can hold it. Results have the bits of the CPU's.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host);

}  // namespace evenkeel
