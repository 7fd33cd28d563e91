// Exit statuses of the evenkeel program beside 0 (done), 1 (failed) and 2 (bad usage or configuration).
#pragma once

namespace evenkeel {

inline constexpr int kExitStopped =
    4;  // a signal ended the run after a checkpoint: start it again to go on

}  // namespace evenkeel
