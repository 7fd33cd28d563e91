// A build without NCCL: GPUs talk through the memory of the CPU, if at all.
#include "parallel/nccl_communicator.h"

namespace evenkeel {

int nccl_version() { return 0; }

std::string nccl_version_text(int) { return "none"; }

std::string why_not_nccl(int) { return "this build has no NCCL"; }

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator>, double) {
    throw_error(ErrorCode::kNotBuilt, "make_nccl_communicator",
                "this build has no NCCL: set parallel.communication=staged, or build where CMake "
                "finds CUDA, MPI and NCCL");
}

void check_nccl(double) {}

}  // namespace evenkeel
