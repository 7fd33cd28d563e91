// Collectives from point-to-point messages, so that the order of summation is ours (rank order, the same
// bits on all ranks), bf16 travels as bf16, and every wait has a deadline and a name.
//
// all_reduce: up to kDirectBytes, every rank sends everything to every other and sums for itself: one
// step. Beyond that, each rank sums one piece (reduce-scatter) and sends the result to the others
// (all-gather): 2 (P-1)/P of the data each way, the least there is.
#include "parallel/mpi_communicator.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <numeric>
#include <vector>

#include "parallel/collective_checks.h"
#include "parallel/reduce_kernels.h"
#include "parallel/watchdog.h"

namespace evenkeel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kDirectBytes = 64 << 10;
// Longer tensors are reduced slice by slice, so that what a slice touches stays in the caches.
constexpr std::int64_t kSliceBytes = 2 << 20;
constexpr int kSpins = 200;  // tests of the requests before the first yield
// Tags 0 .. for collectives, by sequence number and kind: messages of different operations never meet, so
// that ranks that differ wait, and are found, rather than exchange garbage.
constexpr int kCollectiveTags = 30000;
constexpr int kKinds = 16;
constexpr int kPointToPointTag = 30001;

std::atomic<std::int64_t> max_message_bytes{1 << 30};
std::atomic<bool> failed{false};

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string text_of(int status) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    return std::string(text, static_cast<std::size_t>(length));
}

void check_mpi(int status, const char* op) {
    if (status == MPI_SUCCESS) return;
    failed = true;
    throw_error(ErrorCode::kMpi, op, text_of(status));
}

// Those that reduce have three numbers each, by ReduceOp.
enum class Kind {
    kAllReduce = 0,
    kReduceScatter = 3,
    kAllReduceDouble = 6,
    kAllGather = 9,
    kBroadcast = 10,
    kBarrier = 11,
    kSplit = 12,
    kOnNode = 13,
};
static_assert(static_cast<int>(Kind::kOnNode) < kKinds);

class MpiCommunicator final : public Communicator {
  public:
    MpiCommunicator(MPI_Comm comm, const std::string& name, double timeout_seconds)
        : comm_(comm), timeout_seconds_(timeout_seconds) {
        MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
        MPI_Comm_rank(comm_, &rank_);
        MPI_Comm_size(comm_, &size_);
        sources_.resize(static_cast<std::size_t>(size_));
        find_job_ranks();
        enter_log(name);
    }
    ~MpiCommunicator() override {
        // Freeing is collective: not while this rank is leaving alone.
        if (!failed && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
    }
    MpiCommunicator(const MpiCommunicator&) = delete;
    MpiCommunicator& operator=(const MpiCommunicator&) = delete;

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    int job_rank(int member) const override { return job_ranks_[static_cast<std::size_t>(member)]; }

    void set_timeout(double seconds) override { timeout_seconds_ = seconds; }

  protected:
    int do_start_all_reduce(const Tensor& tensor, ReduceOp op) override {
        begin("all_reduce", Kind::kAllReduce, op);
        reduce_on_all(tensor, op);
        return 0;
    }

    int do_start_reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op) override {
        begin("reduce_scatter", Kind::kReduceScatter, op);
        const std::int64_t element = static_cast<std::int64_t>(size_of(input.dtype()));
        const std::int64_t block = output.numel();
        const std::int64_t slice = std::max<std::int64_t>(kSliceBytes / element / size_, 1);
        for (std::int64_t at = 0; at < block; at += slice) {
            const std::int64_t end = std::min(block, at + slice);
            reduce_pieces(input.dtype(), op, input.raw(), output.raw() + at * element,
                          [&](int owner) {
                              return Range{block * owner + at, block * owner + end};
                          });
        }
        return 0;
    }

    int do_start_all_gather(const Tensor& input, const Tensor& output) override {
        begin("all_gather", Kind::kAllGather);
        const std::int64_t bytes = static_cast<std::int64_t>(input.bytes());
        if (bytes == 0) return 0;
        std::byte* mine = output.raw() + bytes * rank_;
        if (mine != input.raw()) std::memcpy(mine, input.raw(), input.bytes());
        for (int step = 1; step < size_; ++step) {
            const int from = peer_before(step);
            receive_bytes(output.raw() + bytes * from, bytes, from);
        }
        for (int step = 1; step < size_; ++step) send_bytes(mine, bytes, peer_after(step));
        wait();
        return 0;
    }

    void do_broadcast(const Tensor& tensor, int root) override {
        begin("broadcast", Kind::kBroadcast);
        const std::int64_t bytes = static_cast<std::int64_t>(tensor.bytes());
        if (bytes == 0) return;
        if (rank_ == root) {
            for (int step = 1; step < size_; ++step) {
                send_bytes(tensor.raw(), bytes, peer_after(step));
            }
        } else {
            receive_bytes(tensor.raw(), bytes, root);
        }
        wait();
    }

    void do_send(const Tensor& tensor, int destination) override {
        begin_point_to_point("send");
        send_bytes(tensor.raw(), static_cast<std::int64_t>(tensor.bytes()), destination);
        wait();
    }

    void do_receive(const Tensor& tensor, int source) override {
        begin_point_to_point("receive");
        receive_bytes(tensor.raw(), static_cast<std::int64_t>(tensor.bytes()), source);
        wait();
    }

    void do_barrier() override {
        begin("barrier", Kind::kBarrier);
        exchange_all(nullptr, 0);
    }

    std::unique_ptr<Communicator> do_split(int color, const std::string& name) override {
        // MPI_Comm_split has no deadline: make sure by ours that everyone is there.
        begin("split", Kind::kSplit);
        exchange_all(nullptr, 0);
        MPI_Comm part = MPI_COMM_NULL;
        check_mpi(MPI_Comm_split(comm_, color, rank_, &part), "split");
        return std::make_unique<MpiCommunicator>(part, name, timeout_seconds_);
    }

    OnNode do_on_node() override {
        begin("on_node", Kind::kOnNode);
        exchange_all(nullptr, 0);  // as in split()
        MPI_Comm node = MPI_COMM_NULL;
        check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
                  "on_node");
        OnNode place;
        MPI_Comm_rank(node, &place.rank);
        MPI_Comm_size(node, &place.size);
        MPI_Comm_free(&node);
        return place;
    }

    void do_all_reduce_double(double& value, ReduceOp op) override {
        begin("all_reduce", Kind::kAllReduceDouble, op);
        exchange_all(reinterpret_cast<std::byte*>(&value), sizeof value);
        reduce_doubles(op, reinterpret_cast<const double* const*>(sources_.data()), size_, &value,
                       1);
    }

  private:
    void find_job_ranks() {
        std::vector<int> members(static_cast<std::size_t>(size_));
        std::iota(members.begin(), members.end(), 0);
        job_ranks_.resize(members.size());
        MPI_Group group = MPI_GROUP_NULL, job = MPI_GROUP_NULL;
        MPI_Comm_group(comm_, &group);
        MPI_Comm_group(MPI_COMM_WORLD, &job);
        MPI_Group_translate_ranks(group, size_, members.data(), job, job_ranks_.data());
        MPI_Group_free(&group);
        MPI_Group_free(&job);
    }

    // Peers in an order in which no rank is everyone's first.
    int peer_after(int step) const { return (rank_ + step) % size_; }
    int peer_before(int step) const { return (rank_ - step + size_) % size_; }

    void begin(const char* op, Kind kind, ReduceOp reduce = ReduceOp::kSum) {
        op_ = op;
        const auto turn = static_cast<int>(sequence_ % (kCollectiveTags / kKinds));
        tag_ = turn * kKinds + static_cast<int>(kind) + static_cast<int>(reduce);
        ++sequence_;
        refuse_after_failure();
    }
    void begin_point_to_point(const char* op) {
        op_ = op;
        tag_ = kPointToPointTag;
        refuse_after_failure();
    }
    void refuse_after_failure() const {
        EVENKEEL_CHECK_CODE(!failed, ErrorCode::kMpi, op_,
                            "an earlier operation between ranks has failed");
    }

    // Every rank's block to every rank; sources_ then points at them in rank order, this rank's own in
    // place.
    void exchange_all(std::byte* data, std::int64_t bytes) {
        std::byte* staging = stage(bytes * (size_ - 1));
        for (int step = 1; step < size_; ++step) {
            std::byte* block = staging + bytes * (step - 1);
            sources_[static_cast<std::size_t>(peer_before(step))] = block;
            receive_bytes(block, bytes, peer_before(step));
        }
        sources_[static_cast<std::size_t>(rank_)] = data;
        for (int step = 1; step < size_; ++step) send_bytes(data, bytes, peer_after(step));
        wait();
    }

    // Sends every other rank its piece of data and reduces this rank's piece of all ranks into out, which
    // may be that piece of data itself.
    template <typename Piece>
    void reduce_pieces(DType dtype, ReduceOp op, std::byte* data, std::byte* out, Piece&& piece) {
        const std::int64_t element = static_cast<std::int64_t>(size_of(dtype));
        const Range mine = piece(rank_);
        std::byte* staging = stage(mine.size() * element * (size_ - 1));
        for (int step = 1; step < size_; ++step) {
            std::byte* block = staging + mine.size() * element * (step - 1);
            sources_[static_cast<std::size_t>(peer_before(step))] = block;
            receive_bytes(block, mine.size() * element, peer_before(step));
        }
        sources_[static_cast<std::size_t>(rank_)] = data + mine.begin * element;
        for (int step = 1; step < size_; ++step) {
            const Range theirs = piece(peer_after(step));
            send_bytes(data + theirs.begin * element, theirs.size() * element, peer_after(step));
        }
        wait();
        reduce_blocks(dtype, op, sources_.data(), size_, out, mine.size());
    }

    void reduce_on_all(const Tensor& tensor, ReduceOp op) {
        if (tensor.numel() == 0) return;
        if (static_cast<std::int64_t>(tensor.bytes()) <= kDirectBytes) {
            exchange_all(tensor.raw(), static_cast<std::int64_t>(tensor.bytes()));
            reduce_blocks(tensor.dtype(), op, sources_.data(), size_, tensor.raw(), tensor.numel());
            return;
        }
        const std::int64_t slice = kSliceBytes / static_cast<std::int64_t>(size_of(tensor.dtype()));
        for (std::int64_t at = 0; at < tensor.numel(); at += slice) {
            all_reduce_slice(tensor, op, at, std::min(slice, tensor.numel() - at));
        }
    }

    // Reduce-scatter, then all-gather, of elements [first, first + count).
    void all_reduce_slice(const Tensor& tensor,
                          ReduceOp op,
                          std::int64_t first,
                          std::int64_t count) {
        const std::int64_t element = static_cast<std::int64_t>(size_of(tensor.dtype()));
        const auto piece = [&](int owner) { return piece_of(count, size_, owner); };
        std::byte* data = tensor.raw() + first * element;
        const Range mine = piece(rank_);
        reduce_pieces(tensor.dtype(), op, data, data + mine.begin * element, piece);
        for (int step = 1; step < size_; ++step) {
            const int from = peer_before(step);
            receive_bytes(data + piece(from).begin * element, piece(from).size() * element, from);
        }
        for (int step = 1; step < size_; ++step) {
            send_bytes(data + mine.begin * element, mine.size() * element, peer_after(step));
        }
        wait();
    }

    std::byte* stage(std::int64_t bytes) {
        if (static_cast<std::int64_t>(staging_.bytes()) < bytes) {
            staging_ = Tensor();
            staging_ = Tensor::uninitialized({(bytes + 3) / 4}, DType::kInt32);
        }
        return staging_.raw();
    }

    void send_bytes(const std::byte* data, std::int64_t bytes, int peer) {
        for_each_message(bytes, max_message_bytes, [&](std::int64_t offset, std::int64_t length) {
            check_mpi(MPI_Isend(data + offset, static_cast<int>(length), MPI_BYTE, peer, tag_,
                                comm_, new_request(peer, -1)),
                      op_);
        });
    }
    void receive_bytes(std::byte* data, std::int64_t bytes, int peer) {
        for_each_message(bytes, max_message_bytes, [&](std::int64_t offset, std::int64_t length) {
            check_mpi(MPI_Irecv(data + offset, static_cast<int>(length), MPI_BYTE, peer, tag_,
                                comm_, new_request(peer, static_cast<int>(length))),
                      op_);
        });
    }
    // received: the bytes that must come; below 0 for what is sent.
    MPI_Request* new_request(int peer, int received) {
        peers_.push_back(peer);
        lengths_.push_back(received);
        return &requests_.emplace_back(MPI_REQUEST_NULL);
    }

    // Completes all requests made since the last wait.
    void wait() {
        const auto start = Clock::now();
        statuses_.resize(requests_.size());
        int done = 0;
        for (std::int64_t round = 0;; ++round) {
            const int status = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(),
                                           &done, statuses_.data());
            if (status != MPI_SUCCESS) throw_failed_messages(status);
            if (done) break;
            if (round < kSpins) continue;
            sched_yield();  // there may be more ranks than cores
            if (seconds_since(start) > timeout_seconds_) throw_timeout();
        }
        if (timing_) seconds_of(current_).exposed += seconds_since(start);
        check_lengths();
        requests_.clear();
        peers_.clear();
        lengths_.clear();
    }

    // MPI finds messages that are too long, not those that are too short.
    void check_lengths() {
        for (std::size_t i = 0; i < lengths_.size(); ++i) {
            if (lengths_[i] < 0) continue;
            int received = 0;
            MPI_Get_count(&statuses_[i], MPI_BYTE, &received);
            if (received == lengths_[i]) continue;
            fail(concat(between(i), "got ", received, " bytes, want ", lengths_[i]));
        }
    }
    std::string between(std::size_t message) const {
        return concat("between ranks ", job_rank(rank_), " and ", job_rank(peers_[message]),
                      " (do both call the same operations with the same sizes?): ");
    }
    // What needs other ranks has failed: the watchdog says more, where there is one.
    [[noreturn]] void fail(const std::string& text) const {
        failed = true;
        rank_is_lost(concat("[", op_, "] ", text));
        throw_error(ErrorCode::kMpi, op_, text);
    }

    [[noreturn]] void throw_failed_messages(int status) {
        if (status == MPI_ERR_IN_STATUS) {
            for (std::size_t i = 0; i < statuses_.size(); ++i) {
                const int one = statuses_[i].MPI_ERROR;
                if (one == MPI_SUCCESS || one == MPI_ERR_PENDING) continue;
                fail(between(i) + text_of(one));
            }
        }
        fail(text_of(status));
    }

    [[noreturn]] void throw_timeout() {
        failed = true;
        std::vector<bool> missing(static_cast<std::size_t>(size_), false);
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            int done = 0;
            MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
            if (!done) missing[static_cast<std::size_t>(peers_[i])] = true;
        }
        std::string ranks;
        for (int peer = 0; peer < size_; ++peer) {
            if (missing[static_cast<std::size_t>(peer)]) {
                ranks += (ranks.empty() ? "" : ", ") + std::to_string(job_rank(peer));
            }
        }
        fail(concat("operation ", sequence_, " of a group of ", size_, " ranks: rank ",
                    job_rank(rank_), " waited ", timeout_seconds_, " s for rank ", ranks,
                    "; it has failed, hangs, or needs a longer timeout_seconds"));
    }

    MPI_Comm comm_;
    double timeout_seconds_;
    int rank_ = 0;
    int size_ = 1;
    std::vector<int> job_ranks_;  // of the members, in MPI_COMM_WORLD: what messages call them
    std::int64_t sequence_ = 0;
    const char* op_ = "";
    int tag_ = 0;
    std::vector<MPI_Request> requests_;
    std::vector<MPI_Status> statuses_;
    std::vector<int> peers_;    // whom each request waits for
    std::vector<int> lengths_;  // see new_request()
    std::vector<const std::byte*> sources_;
    Tensor staging_ = Tensor::uninitialized({0}, DType::kInt32);
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_world(double timeout_seconds) {
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    return std::make_unique<MpiCommunicator>(comm, "world", timeout_seconds);
}

bool mpi_has_failed() { return failed; }
void set_mpi_failed() { failed = true; }

std::int64_t set_max_message_bytes(std::int64_t bytes) { return max_message_bytes.exchange(bytes); }

}  // namespace evenkeel
