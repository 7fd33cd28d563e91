// Collective operations over a group of ranks. All ranks of a group call the same operations in the same
// order with the same sizes.
//
// Sums: elements are added in fp32 whatever their float type (fp64 in fp64), in rank order 0, 1, ..,
// size-1, and rounded once, so the result is the same bits on every rank and in every run. bf16 travels
// as bf16. A mean is that sum times 1/size. NCCL keeps neither the order nor the single rounding of
// these sums: see nccl_communicator.h. A maximum with a NaN in it is NaN. Element counts may exceed 2^31.
// Every wait of the host has a deadline; when it passes, the operation throws kMpi and names the
// operation, its sequence number and the ranks that did not answer. After that the group is of no
// further use.
//
// Tensors are contiguous, of one type and on the group's device (else kInvalidArgument); they may be
// empty. On CUDA an operation is asked for and not done when the call returns: it comes after what is on
// the current stream so far, and what comes later on that stream comes after it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>

#include "framework/tensor.h"

namespace evenkeel {

enum class ReduceOp { kSum, kMax, kMean };

// What this rank has asked its group to do since the last reset: tests count with it, reports print it.
struct CommunicationCounts {
    std::int64_t all_reduces = 0;
    std::int64_t reduce_scatters = 0;
    std::int64_t all_gathers = 0;
    std::int64_t broadcasts = 0;
    std::int64_t bytes = 0;  // payload: bytes of the full tensor of each operation
};

// Operations as time is told of them; kOther: barriers, messages from one rank to another, numbers of the host.
enum class Collective { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kOther };
inline constexpr std::size_t kCollectives = 5;
const char* name_of(Collective collective);  // "all_reduce"

// What one kind of operations took of this rank, in seconds.
struct CommunicationSeconds {
    double exposed = 0.0;  // it only waited
    double hidden = 0.0;   // they ran beside other work
};
using CommunicationTimes = std::array<CommunicationSeconds, kCollectives>;  // by Collective

class Communicator;

// Where in the source an operation was asked for.
using CallSite = std::source_location;

// A collective that was started. Its tensors are neither read nor written before wait() (the input of a gather
// may be read), and their memory is kept until then. The group must outlive it.
class [[nodiscard]] Pending {
  public:
    Pending() = default;  // nothing to wait for
    Pending(Pending&& other) noexcept;
    Pending& operator=(Pending&& other) noexcept;
    ~Pending();

    // Later work on the current stream comes after the collective; the host does not wait. The first
    // call counts, later ones do nothing.
    void wait();

    // How many in this process have died before wait() was called, except while an error was on its way.
    // They do wait, but too late for whoever has used the tensor: test programs fail when this is not 0.
    static std::int64_t dropped();

  private:
    friend class Communicator;
    Pending(Communicator& group, const Tensor& input, const Tensor& output, int ticket)
        : group_(&group), input_(input), output_(output), ticket_(ticket) {}
    void drop() noexcept;

    Communicator* group_ = nullptr;  // null: nothing to wait for
    Tensor input_, output_;
    int ticket_ = 0;
};

// What callers use checks the arguments, counts, and writes into the process's CollectiveLog; the do_
// functions behind do the work. `site` is the caller's line unless a wrapper passes on its own caller's.
class Communicator {
  public:
    virtual ~Communicator() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual int job_rank(int member) const { return member; }  // what messages call a rank
    virtual Device device() const { return Device::kCpu; }     // where the tensors are
    // Whether a CUDA graph can hold its operations: not where they wait on the host.
    virtual bool fits_graphs() const { return true; }
    // The same ranks for tensors on the CPU; itself if that is its device.
    virtual Communicator& host() { return *this; }

    // In place over all ranks. fp32, bf16, int32, fp64; the mean of fp32 and fp64 only. The CPU has done
    // it when start_all_reduce() returns; on CUDA it runs on the group's own stream, beside what the
    // current stream does until wait().
    void all_reduce(const Tensor& tensor, ReduceOp op, CallSite site = CallSite::current());
    Pending start_all_reduce(const Tensor& tensor,
                             ReduceOp op,
                             CallSite site = CallSite::current());
    // input: [size, ...] contiguous, one block a rank; output: the sum over ranks of block rank(), or its
    // mean or maximum. output may be its own block of input, whose other blocks then hold anything.
    // Started as start_all_reduce() says.
    void reduce_scatter(const Tensor& input,
                        const Tensor& output,
                        ReduceOp op = ReduceOp::kSum,
                        CallSite site = CallSite::current());
    Pending start_reduce_scatter(const Tensor& input,
                                 const Tensor& output,
                                 ReduceOp op = ReduceOp::kSum,
                                 CallSite site = CallSite::current());
    // input: one contiguous block; output: [size, ...], the blocks in rank order. input may be its own
    // block of output. Started as start_all_reduce() says.
    void all_gather(const Tensor& input, const Tensor& output, CallSite site = CallSite::current());
    Pending start_all_gather(const Tensor& input,
                             const Tensor& output,
                             CallSite site = CallSite::current());
    void broadcast(const Tensor& tensor, int root, CallSite site = CallSite::current());
    // Blocks of one rank to another: the tensor's elements, contiguous.
    void send(const Tensor& tensor, int destination, CallSite site = CallSite::current());
    void receive(const Tensor& tensor, int source, CallSite site = CallSite::current());
    // Of the hosts: no work on a GPU is waited for.
    void barrier(CallSite site = CallSite::current());
    // Of doubles on the host, summed in rank order.
    double all_reduce_scalar(double value, ReduceOp op, CallSite site = CallSite::current());

    // Longest wait of the host from now on, here and in groups split off later.
    virtual void set_timeout(double seconds) = 0;

    // Ranks with the same colour form a new group, ordered by their rank here; reports call it by that
    // name. Collective. The group this one was made from must outlive it.
    std::unique_ptr<Communicator> split(int color,
                                        const std::string& name = "part",
                                        CallSite site = CallSite::current());

    // This rank among those of the group on its machine. Collective.
    struct OnNode {
        int rank = 0, size = 1;
    };
    OnNode on_node(CallSite site = CallSite::current());

    CommunicationCounts& counts() { return counts_; }
    const std::string& name() const { return name_; }

    // How long this rank only waited for operations of this group, and how long these ran beside other work. Measured
    // from set_timing(true) on: on the CPU inside the operations, where nothing is hidden, on CUDA on the streams that
    // wait and of the group, but not in CUDA graphs.
    void set_timing(bool on) { timing_ = on; }
    // Of the operations that have been waited for since the last call. On CUDA the streams that waited must have been
    // synchronised with the host.
    virtual CommunicationTimes take_times();

  protected:
    friend class Pending;
    // What is started returns a ticket for finish().
    virtual int do_start_all_reduce(const Tensor& tensor, ReduceOp op) = 0;
    virtual int do_start_reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op) = 0;
    virtual int do_start_all_gather(const Tensor& input, const Tensor& output) = 0;
    virtual void do_broadcast(const Tensor& tensor, int root) = 0;
    virtual void do_send(const Tensor& tensor, int destination) = 0;
    virtual void do_receive(const Tensor& tensor, int source) = 0;
    virtual void do_barrier() = 0;
    virtual void do_all_reduce_double(double& value, ReduceOp op) = 0;
    virtual std::unique_ptr<Communicator> do_split(int color, const std::string& name) = 0;
    virtual OnNode do_on_node() { return {}; }
    // The first wait() of what was started with this ticket.
    virtual void finish(int /*ticket*/) {}

    // From now on the log holds this group's operations, under this name. Not for a group of one, which
    // waits for nobody.
    void enter_log(const std::string& name);

    CommunicationSeconds& seconds_of(Collective collective) {
        return times_[static_cast<std::size_t>(collective)];
    }

    CommunicationCounts counts_;
    bool timing_ = false;
    Collective current_ = Collective::kOther;  // what a do_ function does
    CommunicationTimes times_;

  private:
    class Recorded;
    void count(std::int64_t& operations, std::size_t bytes);

    std::string name_ = "self";
    int log_group_ = -1;  // in the CollectiveLog; below 0: not in it
    std::int64_t sequence_ = 0;
};

// One process: every collective is the identity. The same code paths as for many ranks.
std::unique_ptr<Communicator> make_single_communicator(Device device = Device::kCpu);

}  // namespace evenkeel
