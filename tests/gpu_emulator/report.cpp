// What was found, and the process' exit status.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

std::vector<std::string>& pending() {
    static auto* reports = new std::vector<std::string>;
    return *reports;
}

// Runs after main(): whatever status the program wanted, one that passed with reports has failed.
struct AtExit {
    AtExit() { ::on_exit(&AtExit::check, nullptr); }
    static void check(int status, void*) {
        if (pending().empty() || status != 0) return;
        std::fprintf(stderr, "[gpu emulator] %zu report%s: failing the process\n", pending().size(),
                     pending().size() == 1 ? "" : "s");
        std::fflush(nullptr);
        _exit(1);
    }
};

}  // namespace

void report(const std::string& text) {
    static AtExit at_exit;
    pending().push_back("[gpu emulator] " + text);
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", pending().back().c_str());
}

std::size_t report_count() { return pending().size(); }

std::vector<std::string> take_reports() { return std::exchange(pending(), {}); }

}  // namespace gpu_emulator
