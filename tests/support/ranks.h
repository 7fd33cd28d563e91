// For tests that run under mpirun.
#pragma once

#include "parallel/communicator.h"

namespace evenkeel::testing {

// All ranks of the run; the program's main (mpi_main.cpp) made it.
Communicator& world();

}  // namespace evenkeel::testing
