// How many processor cores ranks have together.
#pragma once

#include "parallel/communicator.h"

namespace evenkeel {

// Cores that any of the ranks may use (framework/cores.h), counted by number, so those of a machine where machines are alike.
// With ranks that are bound to cores of their own that is the cores of all of them, in a container what it leaves. Collective.
int cores_of_ranks(Communicator& world);

}  // namespace evenkeel
