// The processor cores that this process may use, and their cache.
#pragma once

#include <cstdint>
#include <vector>

namespace evenkeel {

// Their numbers, ascending: what the launcher, a container or taskset leaves of the machine's. Empty where the system does
// not say.
std::vector<int> allowed_cores();

// Bytes of the last-level cache for each core that shares it, by the first of the allowed cores; 0 where the system does
// not say.
std::int64_t cache_share();

}  // namespace evenkeel
