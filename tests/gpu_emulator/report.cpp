// What was found, and the process' exit status.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/context.h"

namespace gpu_emulator {
namespace {

std::vector<std::string>& pending() {
    static auto* reports = new std::vector<std::string>;
    return *reports;
}

std::set<std::string>& told() {
    static auto* keys = new std::set<std::string>;
    return *keys;
}

// Runs after main(): whatever status the program wanted, one that passed with reports has failed.
struct AtExit {
    AtExit() { ::on_exit(&AtExit::check, nullptr); }
    static void check(int status, void*) {
        finish_work(true);
        if (pending().empty() || status != 0) return;
        std::fprintf(stderr, "[gpu emulator] %zu report%s: failing the process\n", pending().size(),
                     pending().size() == 1 ? "" : "s");
        std::fflush(nullptr);
        _exit(1);
    }
};

}  // namespace

void watch_exit() { static AtExit at_exit; }

void report(const std::string& text) {
    watch_exit();
    pending().push_back("[gpu emulator] " + text);
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", pending().back().c_str());
}

void report_once(const std::string& key, const std::string& text) {
    if (told().insert(key).second) report(text);
}

std::size_t report_count() { return pending().size(); }

std::vector<std::string> take_reports() {
    finish_work();
    told().clear();
    return std::exchange(pending(), {});
}

}  // namespace gpu_emulator
