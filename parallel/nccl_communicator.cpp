#include "parallel/nccl_communicator.h"

#include <nccl.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "framework/log.h"
#include "framework/stream.h"
#include "parallel/collective_log.h"
#include "parallel/mpi_communicator.h"
#include "parallel/watchdog.h"

namespace evenkeel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kOldest = 21400;           // ncclCommInitRankConfig with blocking = 0
constexpr int kOrderedLaunches = 22600;  // NCCL_LAUNCH_ORDER_IMPLICIT
static_assert(NCCL_VERSION_CODE >= kOldest, "NCCL 2.14 or later is needed");

constexpr int kSpins = 200;  // questions to NCCL before the first nap
constexpr auto kNap = std::chrono::microseconds(50);

class NcclCommunicator;
std::vector<NcclCommunicator*> living;
bool failed = false;  // an operation of any group has: all are aborted

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

ncclDataType_t type_of(DType type) {
    switch (type) {
        case DType::kFloat32:
            return ncclFloat32;
        case DType::kBFloat16:
            return ncclBfloat16;
        case DType::kFloat16:
            return ncclFloat16;
        case DType::kInt32:
            return ncclInt32;
        case DType::kFloat64:
            return ncclFloat64;
    }
    return ncclNumTypes;
}

ncclRedOp_t operation_of(ReduceOp op) {
    switch (op) {
        case ReduceOp::kSum:
            return ncclSum;
        case ReduceOp::kMax:
            return ncclMax;
        case ReduceOp::kMean:
            return ncclAvg;
    }
    return ncclNumOps;
}

std::size_t count_of(const Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

// Before the first call of NCCL, unless the user has chosen.
void set_environment() {
    // Kernels of several groups must not overtake one another on a GPU, or two ranks may each wait in
    // another group's.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    // Other algorithms do not promise the same bits in every run.
    setenv("NCCL_ALGO", "Ring", 0);
}

// Before NCCL keeps the order of launches by itself, one stream for all groups does.
std::shared_ptr<Stream> make_stream() {
    if (nccl_version() >= kOrderedLaunches) {
        return std::make_shared<Stream>(StreamPriority::kHigh);
    }
    static std::weak_ptr<Stream> shared;
    std::shared_ptr<Stream> stream = shared.lock();
    if (stream == nullptr) {
        stream = std::make_shared<Stream>(StreamPriority::kHigh);
        shared = stream;
    }
    return stream;
}

std::string describe_ranks(const Communicator& group) {
    constexpr int kMost = 16;
    std::string text = concat("the GPUs of ", group.size(), " ranks (");
    for (int member = 0; member < std::min(group.size(), kMost); ++member) {
        text += concat(member == 0 ? "" : ", ", group.job_rank(member));
    }
    return text + (group.size() > kMost ? ", ..)" : ")");
}

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(std::unique_ptr<Communicator> host, double timeout_seconds)
        : host_(std::move(host)), timeout_seconds_(timeout_seconds) {
        const std::string why_not = why_not_nccl(nccl_version());
        EVENKEEL_CHECK_CODE(why_not.empty(), ErrorCode::kNccl, "NcclCommunicator", why_not);
        enter_log(host_->name());
        op_ = "NcclCommunicator";
        refuse_after_failure();
        const ncclUniqueId id = share_id();
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        enter();
        try {
            settle(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config));
        } catch (...) {
            leave();
            throw;
        }
    }

    ~NcclCommunicator() override {
        // While an error is on its way the other ranks may not come along.
        if (!failed && std::uncaught_exceptions() > 0) abort_all();
        if (!failed) {
            try {
                finalize();
            } catch (const Error& error) {
                log_warning(
                    error.what());  // aborted, which the end of the session tells the others
            }
        }
        leave();
    }
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;

    int rank() const override { return host_->rank(); }
    int size() const override { return host_->size(); }
    int job_rank(int member) const override { return host_->job_rank(member); }
    Device device() const override { return Device::kCuda; }
    Communicator& host() override { return *host_; }

    void set_timeout(double seconds) override {
        timeout_seconds_ = seconds;
        host_->set_timeout(seconds);
    }

    CommunicationTimes take_times() override {
        for (const std::unique_ptr<Timing>& timing : timings_) {
            if (!timing->waited_for) continue;
            const double exposed = 1e-3 * Event::elapsed_ms(timing->wait_begin, timing->wait_end);
            const double whole = 1e-3 * Event::elapsed_ms(timing->begin, timing->end);
            CommunicationSeconds& seconds = seconds_of(timing->collective);
            seconds.exposed += exposed;
            seconds.hidden += std::max(0.0, whole - exposed);
        }
        const auto over = std::stable_partition(
            timings_.begin(), timings_.end(),
            [](const std::unique_ptr<Timing>& timing) { return !timing->waited_for; });
        std::move(over, timings_.end(), std::back_inserter(free_timings_));
        timings_.erase(over, timings_.end());
        return Communicator::take_times();
    }

    // See check_nccl().
    void check(double waited_seconds) {
        ncclResult_t error = ncclSuccess;
        ncclResult_t asked = ncclCommGetAsyncError(comm_, &error);
        if (asked == ncclSuccess) asked = error;
        if (asked != ncclSuccess && asked != ncclInProgress) throw_failure(asked);
        // A long step is no failure while its operations are done one after the other.
        retire();
        if (std::min(waited_seconds, seconds_since(progress_)) <= timeout_seconds_) return;
        if (!in_flight_.empty() || in_graphs_) throw_timeout(waited_seconds);
    }

  protected:
    int do_start_all_reduce(const Tensor& tensor, ReduceOp op) override {
        return launch("all_reduce", tensor, [&] {
            return ncclAllReduce(tensor.raw(), tensor.raw(), count_of(tensor),
                                 type_of(tensor.dtype()), operation_of(op), comm_,
                                 stream_->handle());
        });
    }

    int do_start_reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op) override {
        return launch("reduce_scatter", input, [&] {
            return ncclReduceScatter(input.raw(), output.raw(), count_of(output),
                                     type_of(input.dtype()), operation_of(op), comm_,
                                     stream_->handle());
        });
    }

    int do_start_all_gather(const Tensor& input, const Tensor& output) override {
        return launch("all_gather", output, [&] {
            return ncclAllGather(input.raw(), output.raw(), count_of(input), type_of(input.dtype()),
                                 comm_, stream_->handle());
        });
    }

    void do_broadcast(const Tensor& tensor, int root) override {
        finish(launch("broadcast", tensor, [&] {
            return ncclBroadcast(tensor.raw(), tensor.raw(), count_of(tensor),
                                 type_of(tensor.dtype()), root, comm_, stream_->handle());
        }));
    }

    void do_send(const Tensor& tensor, int destination) override {
        finish(launch("send", tensor, [&] {
            return ncclSend(tensor.raw(), count_of(tensor), type_of(tensor.dtype()), destination,
                            comm_, stream_->handle());
        }));
    }

    void do_receive(const Tensor& tensor, int source) override {
        finish(launch("receive", tensor, [&] {
            return ncclRecv(tensor.raw(), count_of(tensor), type_of(tensor.dtype()), source, comm_,
                            stream_->handle());
        }));
    }

    void do_barrier() override { host_->barrier(); }
    std::unique_ptr<Communicator> do_split(int color, const std::string& name) override {
        return make_nccl_communicator(host_->split(color, name), timeout_seconds_);
    }
    OnNode do_on_node() override { return host_->on_node(); }
    void do_all_reduce_double(double& value, ReduceOp op) override {
        value = host_->all_reduce_scalar(value, op);
    }

    void finish(int ticket) override {
        if (ticket == kNothing) return;
        const Stream& current = Stream::current();
        Mark& mark = *marks_[static_cast<std::size_t>(ticket)];
        Timing* const timing = std::exchange(mark.timing, nullptr);
        if (timing != nullptr) timing->wait_begin.record(current);
        current.wait(mark.event);
        if (timing != nullptr) {
            timing->wait_end.record(current);
            timing->waited_for = true;
        }
        mark.waited_for = true;
        if (!mark.in_flight) free_marks_.push_back(ticket);
    }

  private:
    static constexpr int kNothing = -1;  // the ticket of an operation without elements

    // An operation on the group's stream, and the wait for it on another.
    struct Timing {
        Collective collective = Collective::kOther;
        bool waited_for = false;
        Event begin, end, wait_begin, wait_end;
    };
    // The end of an operation on the stream. Used again when someone has waited for it and it is done.
    struct Mark {
        Event event{EventTiming::kOff};
        bool waited_for = false, in_flight = false;
        Timing* timing = nullptr;  // null: not timed
    };
    struct Operation {
        std::int64_t sequence;
        const char* op;
        std::size_t bytes;
        int ticket;
        std::int64_t logged;  // in the CollectiveLog
    };

    // While there are groups, waits of the host for a stream look after them.
    void enter() {
        if (living.empty()) set_wait_guard(check_nccl);
        living.push_back(this);
    }
    void leave() {
        std::erase(living, this);
        if (living.empty()) set_wait_guard({});
    }

    ncclUniqueId share_id() {
        ncclUniqueId id{};
        if (rank() == 0) {
            const ncclResult_t result = ncclGetUniqueId(&id);
            if (result != ncclSuccess) throw_failure(result);
        }
        static_assert(sizeof id % sizeof(std::int32_t) == 0);
        const Tensor words =
            Tensor::uninitialized({sizeof id / sizeof(std::int32_t)}, DType::kInt32);
        std::memcpy(words.raw(), &id, sizeof id);
        host_->broadcast(words, 0);
        std::memcpy(&id, words.raw(), sizeof id);
        return id;
    }

    void refuse_after_failure() const {
        EVENKEEL_CHECK_CODE(!failed, ErrorCode::kNccl, op_,
                            "an earlier operation between GPUs has failed");
    }

    // Puts an operation on the group's stream, after what is on the current one. Returns its ticket.
    template <typename Call>
    int launch(const char* op, const Tensor& whole, Call&& call) {
        op_ = op;
        ++sequence_;
        refuse_after_failure();
        if (whole.numel() == 0) return kNothing;
        const Stream& current = Stream::current();
        const bool capturing = current.is_capturing();
        if (!capturing) retire();
        ready_.record(current);
        stream_->wait(ready_);
        // A graph's events have no time of their own.
        Timing* const timing = timing_ && !capturing ? next_timing() : nullptr;
        if (timing != nullptr) timing->begin.record(*stream_);
        settle(call());
        if (timing != nullptr) timing->end.record(*stream_);
        const int ticket = take_mark();
        Mark& mark = *marks_[static_cast<std::size_t>(ticket)];
        mark.timing = timing;
        mark.event.record(*stream_);
        mark.waited_for = false;
        mark.in_flight = !capturing;
        if (capturing) {
            in_graphs_ = true;
        } else {
            in_flight_.push_back(
                {sequence_, op, whole.bytes(), ticket, CollectiveLog::instance().goes_on()});
        }
        return ticket;
    }

    int take_mark() {
        if (free_marks_.empty()) {
            marks_.push_back(std::make_unique<Mark>());
            return static_cast<int>(marks_.size()) - 1;
        }
        const int ticket = free_marks_.back();
        free_marks_.pop_back();
        return ticket;
    }

    Timing* next_timing() {
        if (free_timings_.empty()) free_timings_.push_back(std::make_unique<Timing>());
        timings_.push_back(std::move(free_timings_.back()));
        free_timings_.pop_back();
        Timing& timing = *timings_.back();
        timing.collective = current_;
        timing.waited_for = false;
        return &timing;
    }

    // Forgets operations that are done.
    void retire() {
        while (!in_flight_.empty()) {
            const int ticket = in_flight_.front().ticket;
            Mark& mark = *marks_[static_cast<std::size_t>(ticket)];
            if (!mark.event.done()) return;
            mark.in_flight = false;
            if (mark.waited_for) free_marks_.push_back(ticket);
            CollectiveLog::instance().done(in_flight_.front().logged);
            in_flight_.pop_front();
            progress_ = Clock::now();
        }
    }

    // Gives NCCL time to accept what it was asked for.
    void settle(ncclResult_t result) {
        wait_until([&] {
            if (result == ncclInProgress) {
                const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
                if (asked != ncclSuccess) result = asked;
            }
            if (result != ncclSuccess && result != ncclInProgress) throw_failure(result);
            return result == ncclSuccess;
        });
    }

    template <typename Done>
    void wait_until(Done&& done) {
        const auto start = Clock::now();
        for (int round = 0; !done(); ++round) {
            if (round < kSpins) {
                sched_yield();  // there may be more ranks than cores
                continue;
            }
            std::this_thread::sleep_for(kNap);
            const double waited = seconds_since(start);
            if (waited > timeout_seconds_) throw_timeout(waited);
        }
    }

    void finalize() {
        op_ = "the end of the group";
        wait_until([&] {
            check(0.0);
            retire();
            return in_flight_.empty();
        });
        settle(ncclCommFinalize(comm_));
        ncclCommDestroy(std::exchange(comm_, nullptr));
    }

    // All groups share a fate: their ranks are the same processes.
    static void abort_all() {
        failed = true;
        set_mpi_failed();
        for (NcclCommunicator* group : living) {
            if (group->comm_ != nullptr) ncclCommAbort(std::exchange(group->comm_, nullptr));
        }
    }

    // The oldest operation that is not done is the one to blame; without one, the last.
    std::string what_was_asked() const {
        const Operation* oldest = in_flight_.empty() ? nullptr : &in_flight_.front();
        std::string bytes = oldest == nullptr ? "" : concat(" of ", oldest->bytes, " bytes");
        return concat("operation ", oldest == nullptr ? sequence_ : oldest->sequence, bytes,
                      " between ", describe_ranks(*host_));
    }
    const char* name_of_op() const { return in_flight_.empty() ? op_ : in_flight_.front().op; }

    [[noreturn]] void throw_failure(ncclResult_t result) {
        std::string text = concat(what_was_asked(), ", on rank ", job_rank(rank()), ": ",
                                  ncclGetErrorString(result));
        const char* detail = comm_ == nullptr ? nullptr : ncclGetLastError(comm_);
        if (detail != nullptr && detail[0] != '\0') text += concat(" (", detail, ")");
        const char* const op = name_of_op();
        rank_is_lost(concat("[", op, "] ", text));
        abort_all();
        throw_error(ErrorCode::kNccl, op, text);
    }
    [[noreturn]] void throw_timeout(double waited_seconds) {
        const std::string text = concat(
            what_was_asked(), ": rank ", job_rank(rank()), " waited ", waited_seconds,
            " s; another rank has failed, hangs, asks for another operation, or needs a longer "
            "timeout_seconds");
        const char* const op = name_of_op();
        rank_is_lost(concat("[", op, "] ", text));
        abort_all();
        throw_error(ErrorCode::kMpi, op, text);
    }

    std::unique_ptr<Communicator> host_;
    double timeout_seconds_;
    ncclComm_t comm_ = nullptr;  // null: aborted
    std::shared_ptr<Stream> stream_ = make_stream();
    std::int64_t sequence_ = 0;
    const char* op_ = "";
    Event ready_{EventTiming::kOff};
    std::vector<std::unique_ptr<Mark>> marks_;
    std::vector<int> free_marks_;
    std::deque<Operation> in_flight_;
    Clock::time_point progress_{};  // when an operation was last seen to be done
    bool in_graphs_ = false;        // there may be more in flight than in_flight_ knows
    std::vector<std::unique_ptr<Timing>> timings_, free_timings_;
};

}  // namespace

int nccl_version() {
    set_environment();
    int version = 0;
    return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

std::string nccl_version_text(int version) {
    const int major = version >= 10000 ? 10000 : 1000;
    return concat(version / major, ".", version % major / 100, ".", version % 100);
}

std::string why_not_nccl(int version) {
    if (version < kOldest) {
        return concat("NCCL is too old: got ", nccl_version_text(version), ", want 2.14 or later");
    }
    if (version / 10000 != NCCL_MAJOR) {
        return concat("NCCL is another one than this program was built for: got ",
                      nccl_version_text(version), ", want ", NCCL_MAJOR, ".x");
    }
    return "";
}

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     double timeout_seconds) {
    if (host->size() == 1) return make_single_communicator(Device::kCuda);
    return std::make_unique<NcclCommunicator>(std::move(host), timeout_seconds);
}

void check_nccl(double waited_seconds) {
    CollectiveLog::instance().waits_for_gpu(waited_seconds);
    if (failed) return;
    for (NcclCommunicator* group : living) group->check(waited_seconds);
}

}  // namespace evenkeel
