// Which GPU a rank uses.
#pragma once

#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace evenkeel {

// How tensors on GPUs travel: through NCCL, one GPU a rank, or through the memory of the CPU.
enum class Communication { kNccl, kStaged };

struct GpuAssignment {
    int index = 0;  // of this rank's GPU, among those that this process can use
    int rank_on_node = 0, ranks_on_node = 1;
    int nccl_version = 0;  // 0: not used
    std::string name, uuid, driver;
};

// Takes the GPU of this rank's number on its machine, counted round those that the process sees (one each
// where a launcher shows every task its own), and makes it the current one. Collective over the world,
// before any work on a GPU and before NCCL: throws the same kCuda or kNccl error on every rank when a rank
// has no GPU that can be used, when the GPUs are not of one type, and with NCCL when two ranks would use
// one GPU, or when its versions are too old or differ.
GpuAssignment assign_gpu(Communicator& world, Communication communication);

// What assign_gpu() knows of a rank; for its tests. Internal.
struct RankOnGpu {
    std::string host, uuid, name, problem;  // problem: why the rank has no GPU; else empty
    int gpus_seen = 0;
    int ranks_on_node = 1;
    int nccl_version = 0;
};
// Empty, or what is wrong, as one message; kNccl if NCCL is to blame, else kCuda.
struct AssignmentProblem {
    ErrorCode code = ErrorCode::kCuda;
    std::string text;
};
AssignmentProblem find_problem(const std::vector<RankOnGpu>& ranks, Communication communication);

}  // namespace evenkeel
