// The processor cores that this process may use.
#pragma once

#include <vector>

namespace evenkeel {

// Their numbers, ascending: what the launcher, a container or taskset leaves of the machine's. Empty where the system does
// not say.
std::vector<int> allowed_cores();

}  // namespace evenkeel
