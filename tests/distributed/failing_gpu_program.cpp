// A program with one emulated GPU a rank that goes wrong on one of them, in the way that its argument names.
// Run under mpirun by gpu_job_failure_test.cpp.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "framework/stream.h"
#include "parallel/mpi_session.h"
#include "parallel/process_grid.h"

namespace evenkeel {
namespace {

void run(const std::string& mode, MpiSession& session) {
    Communicator& world = session.world();
    const bool bad = world.rank() == 1;
    ParallelConfig config;
    config.tensor_parallel = world.size();
    config.timeout_seconds = mode == "slow" || mode == "at_the_end" ? 0.5 : 20.0;
    if (mode == "staged") config.communication = Communication::kStaged;
    const ProcessGrid grid(world, config, Device::kCuda);
    Communicator& group = grid.tensor();
    const Tensor x = Tensor::zeros({1000}, DType::kFloat32, Device::kCuda);
    const Tensor y = Tensor::zeros({1000}, DType::kBFloat16, Device::kCuda);
    const auto healthy_step = [&] {
        group.all_reduce(x, ReduceOp::kSum);
        Stream::current().synchronize();
    };
    healthy_step();
    if (mode == "killed") {
        if (bad) raise(SIGKILL);
    } else if (mode == "exits") {
        group.all_reduce(y, ReduceOp::kSum);
        if (bad) _exit(3);
    } else if (mode == "throws") {
        if (bad) throw Error(ErrorCode::kInvalidArgument, "[test] heads: got 3, want 4");
    } else if (mode == "slow") {
        if (bad) std::this_thread::sleep_for(std::chrono::seconds(600));
    } else if (mode == "order") {
        group.all_reduce(bad ? y : x, ReduceOp::kSum);
        group.all_reduce(bad ? x : y, ReduceOp::kSum);
    } else if (mode == "kinds") {
        if (bad) {
            group.broadcast(x, 0);
        } else {
            group.all_reduce(x, ReduceOp::kSum);
        }
    } else if (mode == "sizes") {
        group.all_reduce(bad ? x.slice(0, 0, 10) : x, ReduceOp::kSum);
    } else if (mode == "at_the_end") {
        if (bad) std::this_thread::sleep_for(std::chrono::seconds(600));
        group.all_reduce(x, ReduceOp::kSum);
        return;  // the group's end waits for it
    } else if (mode == "twice") {
        try {
            group.all_reduce(bad ? y : x, ReduceOp::kSum);
            Stream::current().synchronize();
        } catch (const Error& error) {
            std::fprintf(stderr, "first: %s\n", error.what());
        }
    }
    healthy_step();
}

}  // namespace
}  // namespace evenkeel

int main(int argc, char** argv) {
    using namespace evenkeel;
    MpiSession session(&argc, &argv, 20.0);
    try {
        run(argc > 1 ? argv[1] : "", session);
    } catch (const Error& error) {
        session.abort(error.what(), error.exit_status());
    }
    return 0;
}
