#include "framework/cores.h"

#include <sched.h>

#include <cstddef>

namespace evenkeel {

std::vector<int> allowed_cores() {
    constexpr int kMost = 4096;
    cpu_set_t* set = CPU_ALLOC(kMost);
    const std::size_t bytes = CPU_ALLOC_SIZE(kMost);
    std::vector<int> cores;
    if (::sched_getaffinity(0, bytes, set) == 0) {
        for (int core = 0; core < kMost; ++core) {
            if (CPU_ISSET_S(static_cast<std::size_t>(core), bytes, set)) cores.push_back(core);
        }
    }
    CPU_FREE(set);
    return cores;
}

}  // namespace evenkeel
