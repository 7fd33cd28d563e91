// A program that goes wrong on one rank, in the way that its argument names. Run under mpirun by
// job_failure_test.cpp.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "parallel/mpi_session.h"
#include "parallel/process_grid.h"

namespace evenkeel {
namespace {

void sleep_seconds(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Blocks in a collective that never completes on the healthy ranks.
void wait_for_the_others(Communicator& world) {
    world.all_reduce(Tensor::zeros({1 << 20}, DType::kFloat32), ReduceOp::kSum);
}

void run(const std::string& mode, MpiSession& session) {
    Communicator& world = session.world();
    const bool bad = world.rank() == 1;
    if (mode == "throws") {
        if (bad) throw Error(ErrorCode::kInvalidArgument, "[test] heads: got 3, want 4");
        wait_for_the_others(world);
    } else if (mode == "io") {
        if (bad) throw Error(ErrorCode::kIo, "[test] no such file");
        wait_for_the_others(world);
    } else if (mode == "all_throw") {
        ParallelConfig config;
        config.tensor_parallel = 16;
        ProcessGrid grid(world, config);
    } else if (mode == "never_arrives") {
        if (bad) sleep_seconds(600);
        wait_for_the_others(world);
    } else if (mode == "grid_timeout") {
        ParallelConfig config;
        config.tensor_parallel = world.size();
        config.timeout_seconds = 0.5;
        ProcessGrid grid(world, config);
        if (bad) sleep_seconds(600);
        wait_for_the_others(grid.tensor());
    } else if (mode == "part_timeout") {
        ParallelConfig config;
        config.tensor_parallel = 2;
        config.timeout_seconds = 0.5;
        ProcessGrid grid(world, config);
        if (world.rank() != 2) sleep_seconds(600);
        wait_for_the_others(grid.tensor());
    } else if (mode == "timeout_twice") {
        if (bad) sleep_seconds(600);
        try {
            wait_for_the_others(world);
        } catch (const Error& error) {
            std::fprintf(stderr, "first: %s\n", error.what());
        }
        world.barrier();
    } else if (mode == "killed") {
        if (bad) std::abort();
        wait_for_the_others(world);
    } else if (mode == "exits") {
        if (bad) _exit(3);
        wait_for_the_others(world);
    } else if (mode == "sizes_differ") {
        world.all_reduce(Tensor::zeros({bad ? 10 : 20}, DType::kFloat32), ReduceOp::kSum);
    } else if (mode == "healthy") {
        world.barrier();
    }
}

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) {
    using namespace evenkeel;
    const std::string mode = argc > 1 ? argv[1] : "";
    const double timeout = mode == "never_arrives" || mode == "timeout_twice" ? 2.0 : 300.0;
    if (mode == "escapes") {
        // The error leaves the session's scope: its destructor must end the job, not finalise.
        try {
            MpiSession session(&argc, &argv, timeout);
            run("throws", session);
        } catch (const Error&) {
        }
        return 0;
    }
    MpiSession session(&argc, &argv, timeout);
    try {
        run(mode, session);
    } catch (const Error& error) {
        session.abort(error.what(), error.exit_status());
    }
    return 0;
}
