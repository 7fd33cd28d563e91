#include "framework/thread_waits.h"

#include <omp.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace evenkeel {
namespace {

constexpr const char* kSpinCount = "GOMP_SPINCOUNT";
constexpr const char* kShort = "1000";
// Says that this is the program that has been started again.
constexpr const char* kMark = "EVENKEEL_SHORT_WAITS";

// Whether executing /proc/self/exe starts this program: not where the dynamic loader, an emulator or a checker was
// started, and has loaded it.
bool executable_is_this_program() {
    char link[PATH_MAX + 1] = {};
    const ssize_t length = ::readlink("/proc/self/exe", link, PATH_MAX);
    if (length <= 0) return false;
    const auto here = reinterpret_cast<std::uintptr_t>(&executable_is_this_program);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        std::istringstream fields(line);
        std::uintptr_t begin = 0, end = 0;
        char dash = 0;
        fields >> std::hex >> begin >> dash >> end;
        if (here < begin || here >= end) continue;
        const std::size_t path = line.find('/');
        return path != std::string::npos && line.substr(path) == link;
    }
    return false;
}

}  // namespace

void shorten_thread_waits(char** argv) {
    if (std::getenv(kMark) != nullptr) {
        // For what this program starts.
        ::unsetenv(kMark);
        ::unsetenv(kSpinCount);
        return;
    }
    if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv(kSpinCount) != nullptr) return;
    if (omp_get_max_threads() < 2 || !executable_is_this_program()) return;
    ::setenv(kSpinCount, kShort, 1);
    ::setenv(kMark, "1", 1);
    ::execv("/proc/self/exe", argv);
    ::unsetenv(kMark);
    ::unsetenv(kSpinCount);
}

}  // namespace evenkeel
