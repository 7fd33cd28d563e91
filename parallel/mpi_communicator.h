// The MPI implementation of Communicator, for the session and for tests. Internal.
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace evenkeel {

// A group of all ranks that MPI started. MPI must be initialised, and finalised only after the group is
// gone. Collective.
std::unique_ptr<Communicator> make_mpi_world(double timeout_seconds);

// Whether an operation of any group has failed in this process: then MPI has unfinished business, and
// finalising it would hang.
bool mpi_has_failed();
// For an operation between ranks that went another way.
void set_mpi_failed();

// Longest message in bytes, below MPI's limit of 2^31; tests set a small one. Returns the previous one.
std::int64_t set_max_message_bytes(std::int64_t bytes);

}  // namespace evenkeel
