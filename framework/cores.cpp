#include "framework/cores.h"

#include <sched.h>

#include <cstddef>
#include <fstream>
#include <string>

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

namespace {

// How many numbers a list like 0-3,8,10-11 holds.
std::int64_t count_of_list(std::istream& list) {
    std::int64_t count = 0;
    for (std::string range; std::getline(list, range, ',');) {
        const std::size_t dash = range.find('-');
        count += dash == std::string::npos
                     ? 1
                     : std::stol(range.substr(dash + 1)) - std::stol(range.substr(0, dash)) + 1;
    }
    return count;
}

}  // namespace

std::int64_t cache_share() {
    const std::vector<int> cores = allowed_cores();
    if (cores.empty()) return 0;
    const std::string caches =
        "/sys/devices/system/cpu/cpu" + std::to_string(cores.front()) + "/cache/index";
    std::int64_t share = 0, highest = 0;
    for (int index = 0;; ++index) {
        const std::string cache = caches + std::to_string(index);
        std::ifstream level_file(cache + "/level"), size_file(cache + "/size"),
            cores_file(cache + "/shared_cpu_list");
        std::int64_t level = 0, kibibytes = 0;
        if (!(level_file >> level) || !(size_file >> kibibytes)) return share;
        const std::int64_t sharing = count_of_list(cores_file);
        if (level < highest || sharing == 0) continue;
        highest = level;
        share = kibibytes * 1024 / sharing;
    }
}

}  // namespace evenkeel
