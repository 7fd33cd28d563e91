#include "parallel/mpi_session.h"

#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "parallel/collective_log.h"
#include "parallel/launch_environment.h"
#include "parallel/mpi_communicator.h"
#include "parallel/watchdog.h"

namespace evenkeel {
namespace {

// Longer than rank 0 needs to end the job.
constexpr auto kHoldBack = std::chrono::milliseconds(700);

// Ends the process when it has not gone out of scope in time: MPI waits for ever for a rank that is stopped where
// there is no communicator yet, or no more.
class Deadline {
  public:
    Deadline(const char* operation, int rank, double seconds) {
        // Signals are the main thread's.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        thread_ = std::thread([this, operation, rank, seconds] {
            std::unique_lock lock(mutex_);
            const bool is_over = changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                                   [this] { return is_over_; });
            if (is_over) return;
            std::fprintf(stderr,
                         "rank %d has waited %g s in %s: another rank is stopped, dead, or was "
                         "never started; it ends with exit status %d\n",
                         rank, seconds, operation, kExitRankLost);
            std::fflush(stderr);
            _exit(kExitRankLost);
        });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    ~Deadline() {
        {
            const std::lock_guard lock(mutex_);
            is_over_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    Deadline(const Deadline&) = delete;
    Deadline& operator=(const Deadline&) = delete;

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_over_ = false;
    std::thread thread_;
};

// What the watchdog sees of MPI's end: an operation of all ranks.
void finalize(std::unique_ptr<Communicator>& world) {
    CollectiveLog& log = CollectiveLog::instance();
    CollectiveRecord record;
    std::vector<int> all(static_cast<std::size_t>(world->size()));
    std::iota(all.begin(), all.end(), 0);
    record.group = log.add_group({"job", all});
    record.op = "MPI_Finalize";
    record.site = CallSite::current();
    std::int64_t sequence = 0;
    const std::int64_t index = log.begin(record, &sequence);
    world.reset();
    MPI_Finalize();
    log.end(index);
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv, double timeout_seconds, Mismatch mismatch)
    : timeout_seconds_(timeout_seconds) {
    const Launch launch = launch_of_this_process();
    const int launched = launch.processes;
    if (launched <= 1) {
        world_ = make_single_communicator();
        return;
    }
    {
        const Deadline deadline("MPI_Init", launch.rank, timeout_seconds);
        int provided = 0;
        MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
        owns_mpi_ = true;
        world_ = make_mpi_world(timeout_seconds);
    }
    if (world_->size() != launched && mismatch == Mismatch::kThrow) {
        const std::string message = concat(
            "[MpiSession] the launcher started ", launched, " processes, but MPI sees ",
            world_->size(),
            ": start them with the mpirun of the MPI that this program is built with, or with "
            "srun --mpi=pmix");
        world_.reset();
        MPI_Finalize();
        throw Error(ErrorCode::kMpi, message);
    }
}

MpiSession::~MpiSession() {
    if (!owns_mpi_) return;
    if (std::uncaught_exceptions() > 0) abort("ended by an error", 1);
    if (mpi_has_failed()) MPI_Abort(MPI_COMM_WORLD, 1);
    {
        // Beside the watchdog, which may be off.
        const Deadline deadline("MPI_Finalize", world_->rank(), timeout_seconds_);
        finalize(world_);
    }
    stop_watchdog();
}

void MpiSession::abort(const char* message, int exit_status) {
    const int rank = world_->rank();
    if (rank > 0) std::this_thread::sleep_for(kHoldBack);
    if (world_->size() > 1) {
        std::fprintf(stderr, "rank %d: %s\n", rank, message);
    } else {
        std::fprintf(stderr, "%s\n", message);
    }
    std::fflush(nullptr);
    if (owns_mpi_) MPI_Abort(MPI_COMM_WORLD, exit_status);
    std::_Exit(exit_status);
}

bool mpi_is_available() { return true; }

std::string mpi_library_version() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    // Open MPI goes on with who has built it, behind a comma; others with further lines.
    const std::string line(text, static_cast<std::size_t>(length));
    return line.substr(0, line.find_first_of(",\n"));
}

}  // namespace evenkeel
