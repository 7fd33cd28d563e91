// What a launcher tells the processes it starts. Internal.
#pragma once

#include <cstdlib>
#include <string>

namespace evenkeel {

// The number of processes that mpirun or a Slurm launcher says it started; 0 when none did.
inline int launched_processes() {
    // Open MPI; MPICH, Intel MPI and Slurm's pmi2; Slurm with any plugin.
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
        if (const char* value = std::getenv(name)) {
            if (const int count = std::atoi(value); count > 0) return count;
        }
    }
    return 0;
}

}  // namespace evenkeel
