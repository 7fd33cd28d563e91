// Exit statuses of the evenkeel program beside 0 (done), 1 (failed) and 2 (bad usage or configuration).
#pragma once

namespace evenkeel {

inline constexpr int kExitStopped =
    4;  // a signal ended the run after a checkpoint: start it again to go on

// Appends "process 12 on n0: exit status 1" to the file that the variable EVENKEEL_STATUS_FILE names, if it does. For who
// starts ranks by a launcher that gives a status of its own where it ends the other ranks (launch/slurm.sbatch). What
// cannot be written is let go: the program ends all the same.
void note_exit_status(int status) noexcept;

}  // namespace evenkeel
