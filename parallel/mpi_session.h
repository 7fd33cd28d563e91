// MPI's life time, for a program's main. No MPI type appears here.
#pragma once

#include <memory>
#include <string>

#include "parallel/communicator.h"

namespace evenkeel {

// What to do where MPI sees other ranks than the launcher has started.
enum class Mismatch { kThrow, kAccept };

class MpiSession {
  public:
    // Initialises MPI when the process was started by mpirun or a Slurm launcher (seen from its
    // environment) with more than one rank, or else stays alone: world() is then a group of one.
    // timeout_seconds bounds every wait: where it passes in MPI_Init or MPI_Finalize the process says so and
    // ends with kExitRankLost. Throws kMpi when the launcher started several processes
    // that MPI does not know of (an mpirun of another MPI), kNotBuilt in a build without MPI; neither with
    // kAccept, for a program that tells what is wrong: world() then is what MPI sees.
    MpiSession(int* argc,
               char*** argv,
               double timeout_seconds = 300.0,
               Mismatch mismatch = Mismatch::kThrow);
    // Finalises, watched by the watchdog where one runs, and stops that; or, while an exception is in flight or after a failed operation, aborts the whole job:
    // finalising would hang.
    ~MpiSession();
    MpiSession(const MpiSession&) = delete;
    MpiSession& operator=(const MpiSession&) = delete;

    Communicator& world() { return *world_; }

    // Prints "rank r: message", ends every rank of the job with this status. Does not return. Ranks above 0
    // hold back for a moment, so that what every rank finds wrong is said once, by rank 0.
    [[noreturn]] void abort(const char* message, int exit_status);

  private:
    double timeout_seconds_;
    bool owns_mpi_ = false;
    std::unique_ptr<Communicator> world_;
};

// Whether this build can talk to other ranks (no_mpi.cpp says no).
bool mpi_is_available();
// "Open MPI v4.1.4", the first line of what the library says of itself; "" without MPI.
std::string mpi_library_version();

}  // namespace evenkeel
