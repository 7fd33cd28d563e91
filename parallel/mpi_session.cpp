#include "parallel/mpi_session.h"

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

#include "parallel/launch_environment.h"
#include "parallel/mpi_communicator.h"

namespace evenkeel {
namespace {

// Longer than rank 0 needs to end the job.
constexpr auto kHoldBack = std::chrono::milliseconds(700);

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv, double timeout_seconds, Mismatch mismatch) {
    const int launched = launch_of_this_process().processes;
    if (launched <= 1) {
        world_ = make_single_communicator();
        return;
    }
    int provided = 0;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    owns_mpi_ = true;
    world_ = make_mpi_world(timeout_seconds);
    if (world_->size() != launched && mismatch == Mismatch::kThrow) {
        const std::string message = concat(
            "[MpiSession] the launcher started ", launched, " processes, but MPI sees ",
            world_->size(),
            ": start them with the mpirun of the MPI that this program is built with, or with "
            "srun --mpi=pmix");
        world_.reset();
        MPI_Finalize();
        throw Error(ErrorCode::kMpi, message);
    }
}

MpiSession::~MpiSession() {
    if (!owns_mpi_) return;
    if (std::uncaught_exceptions() > 0) abort("ended by an error", 1);
    if (mpi_has_failed()) MPI_Abort(MPI_COMM_WORLD, 1);
    world_.reset();
    MPI_Finalize();
}

void MpiSession::abort(const char* message, int exit_status) {
    const int rank = world_->rank();
    if (rank > 0) std::this_thread::sleep_for(kHoldBack);
    if (world_->size() > 1) {
        std::fprintf(stderr, "rank %d: %s\n", rank, message);
    } else {
        std::fprintf(stderr, "%s\n", message);
    }
    std::fflush(nullptr);
    if (owns_mpi_) MPI_Abort(MPI_COMM_WORLD, exit_status);
    std::_Exit(exit_status);
}

bool mpi_is_available() { return true; }

std::string mpi_library_version() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    // Open MPI goes on with who has built it, behind a comma; others with further lines.
    const std::string line(text, static_cast<std::size_t>(length));
    return line.substr(0, line.find_first_of(",\n"));
}

}  // namespace evenkeel
