// Jobs that are started by a test, since they must fail. A hang shows as status 124 of `timeout`.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace evenkeel::testing {

struct JobResult {
    int status = -1;
    std::string output;
    std::size_t count(const std::string& text) const {
        std::size_t found = 0;
        for (std::size_t at = output.find(text); at != std::string::npos;
             at = output.find(text, at + 1))
            ++found;
        return found;
    }
};

// environment: "NAME=value ..", for all ranks.
inline JobResult run_job(const std::string& program,
                         const std::string& mode,
                         int ranks,
                         const std::string& environment = "") {
    const std::string command = environment + " timeout -k 5 40 " EVENKEEL_MPIEXEC " -n " +
                                std::to_string(ranks) + " " + program + " " + mode + " 2>&1";
    JobResult result;
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return result;
    std::array<char, 4096> block;
    while (const std::size_t length = fread(block.data(), 1, block.size(), pipe)) {
        result.output.append(block.data(), length);
    }
    const int status = pclose(pipe);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

}  // namespace evenkeel::testing
