// How OpenMP's threads wait for one another.
#pragma once

namespace evenkeel {

// A thread that waits at a barrier of GCC's OpenMP library spins for milliseconds before it sleeps. Where another program
// wants the cores, it keeps the thread that it waits for from running, and a step takes many times as long. The library
// reads its settings before main() begins and never again, so that this starts the program again in the same process, once,
// with GOMP_SPINCOUNT set to some microseconds. To be called first in main(). Returns where there is nothing to do: with one
// thread, with OMP_WAIT_POLICY or GOMP_SPINCOUNT in the environment, in the program that has been started again (whose
// environment is as it was), and where it cannot be started again.
void shorten_thread_waits(char** argv);

}  // namespace evenkeel
