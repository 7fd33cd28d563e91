// A build without MPI: one process.
#include <cstdio>
#include <cstdlib>

#include "parallel/launch_environment.h"
#include "parallel/mpi_session.h"

namespace evenkeel {

MpiSession::MpiSession(int*, char***, double timeout_seconds, Mismatch mismatch)
    : timeout_seconds_(timeout_seconds), world_(make_single_communicator()) {
    const int launched = launch_of_this_process().processes;
    EVENKEEL_CHECK_CODE(launched <= 1 || mismatch == Mismatch::kAccept, ErrorCode::kNotBuilt,
                        "MpiSession", "the launcher started ", launched,
                        " processes, but this build has no MPI: configure with -DEVENKEEL_MPI=ON");
}

MpiSession::~MpiSession() = default;

void MpiSession::abort(const char* message, int exit_status) {
    std::fprintf(stderr, "%s\n", message);
    std::fflush(nullptr);
    std::_Exit(exit_status);
}

bool mpi_is_available() { return false; }

std::string mpi_library_version() { return ""; }

}  // namespace evenkeel
