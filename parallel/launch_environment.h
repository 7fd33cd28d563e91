// What a launcher tells the processes it starts.
#pragma once

#include <cstdlib>
#include <string>

namespace evenkeel {

struct Launch {
    std::string launcher;  // "" when none started this process
    int processes = 0;     // that it says it started
    int rank = 0;          // of this process among them
};

inline Launch launch_of_this_process() {
    struct Names {
        const char *launcher, *processes, *rank;
    };
    // Open MPI; MPICH, Intel MPI and Slurm's pmi2; Slurm with any plugin.
    constexpr Names kLaunchers[] = {
        {"mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        {"a launcher with PMI", "PMI_SIZE", "PMI_RANK"},
        {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
    for (const Names& names : kLaunchers) {
        const char* value = std::getenv(names.processes);
        const int count = value == nullptr ? 0 : std::atoi(value);
        if (count <= 0) continue;
        const char* rank = std::getenv(names.rank);
        return {names.launcher, count, rank == nullptr ? 0 : std::atoi(rank)};
    }
    return {};
}

}  // namespace evenkeel
