// A job in which one rank goes wrong, in the way that its arguments name, under a watchdog. Run under mpirun
// by watchdog_test.cpp: MODE DIRECTORY [GPUs].
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "framework/stream.h"
#include "parallel/launch_environment.h"
#include "parallel/mpi_session.h"
#include "parallel/process_grid.h"
#include "parallel/watchdog.h"

namespace evenkeel {
namespace {

constexpr double kTimeoutSeconds = 2.0;

void sleep_seconds(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

struct Job {
    const ProcessGrid& grid;
    bool bad;

    void sum(std::int64_t count) const {
        Communicator& group = grid.tensor();
        group.all_reduce(Tensor::zeros({count}, DType::kFloat32, group.device()), ReduceOp::kSum);
    }
    // What a training loop does at the end of a step: it wants a number of the GPU.
    void end_step() const {
        if (grid.device() == Device::kCuda) Stream::current().synchronize();
    }
};

void go_wrong(const Job& job, const std::string& mode) {
    if (mode == "killed") {
        raise(SIGKILL);
    } else if (mode == "stopped") {
        raise(SIGSTOP);
    } else if (mode == "slow") {
        sleep_seconds(600);
    } else if (mode == "busy") {
        volatile std::uint64_t turns = 0;
        for (;;) {
            const std::uint64_t next = turns + 1;
            turns = next;
        }
    } else if (mode == "other_collective") {
        const Communicator& group = job.grid.tensor();
        const Tensor part = Tensor::zeros({5}, DType::kFloat32, group.device());
        const Tensor all = Tensor::zeros({group.size(), 5}, DType::kFloat32, group.device());
        job.grid.tensor().all_gather(part, all);
    } else if (mode == "other_group") {
        job.grid.world().barrier();
    } else if (mode == "other_size") {
        job.sum(7);
    }
    job.end_step();
}

void run(const std::string& mode, const std::string& directory, bool gpus, MpiSession& session) {
    Communicator& world = session.world();
    WatchdogOptions options;
    options.timeout_seconds = kTimeoutSeconds;
    options.directory = directory == "none" ? "" : directory;
    options.poll_seconds = 0.2;
    start_watchdog(world, options);
    ParallelConfig config;
    config.tensor_parallel = world.size();
    config.timeout_seconds = kTimeoutSeconds;
    config.communication = gpus ? Communication::kNccl : Communication::kStaged;
    const ProcessGrid grid(world, config, gpus ? Device::kCuda : Device::kCpu);
    const Job job{grid, world.rank() == world.size() - 1};
    if (job.bad && directory != "none") std::ofstream(directory + ".pid") << getpid();
    for (int step = 0; step < 3; ++step) {
        job.sum(11);
        job.end_step();
    }
    if (job.bad) go_wrong(job, mode);
    job.sum(5);
    job.end_step();
    world.barrier();
    // The others are in MPI_Finalize.
    if (job.bad && mode == "stopped_at_the_end") raise(SIGSTOP);
}

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) {
    using namespace evenkeel;
    const std::string mode = argc > 1 ? argv[1] : "", directory = argc > 2 ? argv[2] : "none";
    const bool stops_at_start = mode == "stopped_at_the_start";
    const Launch launch = launch_of_this_process();
    if (stops_at_start && launch.rank == launch.processes - 1) {
        std::ofstream(directory + ".pid") << getpid();
        raise(SIGSTOP);
    }
    // MPI_Init takes seconds on a busy machine.
    MpiSession session(&argc, &argv, stops_at_start ? kTimeoutSeconds : 60.0);
    try {
        run(mode, directory, argc > 3, session);
    } catch (const Error& error) {
        session.abort(error.what(), error.exit_status());
    }
    return 0;
}
