#include "parallel/communicator.h"

#include <atomic>
#include <exception>
#include <utility>

#include "parallel/collective_checks.h"
#include "parallel/collective_log.h"

namespace evenkeel {
namespace {

std::atomic<std::int64_t> dropped_handles{0};

// By ReduceOp.
constexpr const char* kAllReduceNames[] = {"all_reduce", "all_reduce of maxima",
                                           "all_reduce of means"};
constexpr const char* kReduceScatterNames[] = {"reduce_scatter", "reduce_scatter of maxima",
                                               "reduce_scatter of means"};

constexpr const char* kCollectiveNames[kCollectives] = {"all_reduce", "reduce_scatter",
                                                        "all_gather", "broadcast", "other"};

std::int64_t bytes_of(const Tensor& tensor) { return static_cast<std::int64_t>(tensor.bytes()); }

}  // namespace

const char* name_of(Collective collective) {
    return kCollectiveNames[static_cast<std::size_t>(collective)];
}

Pending::Pending(Pending&& other) noexcept
    : group_(std::exchange(other.group_, nullptr)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      ticket_(other.ticket_) {}

Pending& Pending::operator=(Pending&& other) noexcept {
    if (this == &other) return *this;
    drop();
    group_ = std::exchange(other.group_, nullptr);
    input_ = std::move(other.input_);
    output_ = std::move(other.output_);
    ticket_ = other.ticket_;
    return *this;
}

Pending::~Pending() { drop(); }

void Pending::wait() {
    if (group_ == nullptr) return;
    std::exchange(group_, nullptr)->finish(ticket_);
    input_ = output_ = Tensor();
}

void Pending::drop() noexcept {
    if (group_ == nullptr) return;
    if (std::uncaught_exceptions() == 0) ++dropped_handles;
    try {
        wait();
    } catch (...) {  // the group's next operation fails too, and can say so
    }
}

std::int64_t Pending::dropped() { return dropped_handles; }

// One operation in the log, from here to the end of a scope.
class Communicator::Recorded {
  public:
    Recorded(Communicator& group,
             Collective collective,
             const char* op,
             const CallSite& site,
             std::int64_t bytes = 0,
             DType dtype = DType::kFloat32,
             int peer = -1,
             bool is_message = false)
        : logged_(group.log_group_ >= 0) {
        group.current_ = collective;
        if (!logged_) return;
        CollectiveRecord record;
        record.group = group.log_group_;
        record.op = op;
        record.bytes = bytes;
        record.dtype = dtype;
        record.peer = peer < 0 ? -1 : group.job_rank(peer);
        record.site = site;
        index_ = CollectiveLog::instance().begin(record, is_message ? nullptr : &group.sequence_);
    }
    ~Recorded() {
        if (logged_) CollectiveLog::instance().end(index_);
    }
    Recorded(const Recorded&) = delete;
    Recorded& operator=(const Recorded&) = delete;

  private:
    bool logged_;
    std::int64_t index_ = 0;
};

void Communicator::enter_log(const std::string& name) {
    name_ = name;
    if (size() == 1) return;
    CollectiveGroup group;
    group.name = device() == Device::kCuda ? name + " on GPUs" : name;
    for (int member = 0; member < size(); ++member) group.ranks.push_back(job_rank(member));
    log_group_ = CollectiveLog::instance().add_group(std::move(group));
}

void Communicator::count(std::int64_t& operations, std::size_t bytes) {
    ++operations;
    counts_.bytes += static_cast<std::int64_t>(bytes);
}

void Communicator::all_reduce(const Tensor& tensor, ReduceOp op, CallSite site) {
    start_all_reduce(tensor, op, site).wait();
}

Pending Communicator::start_all_reduce(const Tensor& tensor, ReduceOp op, CallSite site) {
    check_reducible("all_reduce", "tensor", tensor, op, device());
    count(counts_.all_reduces, tensor.bytes());
    const Recorded recorded(*this, Collective::kAllReduce, kAllReduceNames[static_cast<int>(op)],
                            site, bytes_of(tensor), tensor.dtype());
    return Pending(*this, tensor, tensor, do_start_all_reduce(tensor, op));
}

void Communicator::reduce_scatter(const Tensor& input,
                                  const Tensor& output,
                                  ReduceOp op,
                                  CallSite site) {
    start_reduce_scatter(input, output, op, site).wait();
}

Pending Communicator::start_reduce_scatter(const Tensor& input,
                                           const Tensor& output,
                                           ReduceOp op,
                                           CallSite site) {
    check_blocks("reduce_scatter", "output", output, input, size(), device());
    check_reducible("reduce_scatter", "input", input, op, device());
    count(counts_.reduce_scatters, input.bytes());
    const Recorded recorded(*this, Collective::kReduceScatter,
                            kReduceScatterNames[static_cast<int>(op)], site, bytes_of(input),
                            input.dtype());
    return Pending(*this, input, output, do_start_reduce_scatter(input, output, op));
}

void Communicator::all_gather(const Tensor& input, const Tensor& output, CallSite site) {
    start_all_gather(input, output, site).wait();
}

Pending Communicator::start_all_gather(const Tensor& input, const Tensor& output, CallSite site) {
    check_blocks("all_gather", "input", input, output, size(), device());
    count(counts_.all_gathers, output.bytes());
    const Recorded recorded(*this, Collective::kAllGather, "all_gather", site, bytes_of(output),
                            output.dtype());
    return Pending(*this, input, output, do_start_all_gather(input, output));
}

void Communicator::broadcast(const Tensor& tensor, int root, CallSite site) {
    check_block("broadcast", "tensor", tensor, device());
    check_peer("broadcast", "root", root, *this);
    count(counts_.broadcasts, tensor.bytes());
    const Recorded recorded(*this, Collective::kBroadcast, "broadcast", site, bytes_of(tensor),
                            tensor.dtype(), root);
    do_broadcast(tensor, root);
}

void Communicator::send(const Tensor& tensor, int destination, CallSite site) {
    check_block("send", "tensor", tensor, device());
    check_other("send", "destination", destination, *this);
    const Recorded recorded(*this, Collective::kOther, "send", site, bytes_of(tensor),
                            tensor.dtype(), destination, true);
    do_send(tensor, destination);
}

void Communicator::receive(const Tensor& tensor, int source, CallSite site) {
    check_block("receive", "tensor", tensor, device());
    check_other("receive", "source", source, *this);
    const Recorded recorded(*this, Collective::kOther, "receive", site, bytes_of(tensor),
                            tensor.dtype(), source, true);
    do_receive(tensor, source);
}

void Communicator::barrier(CallSite site) {
    const Recorded recorded(*this, Collective::kOther, "barrier", site);
    do_barrier();
}

double Communicator::all_reduce_scalar(double value, ReduceOp op, CallSite site) {
    count(counts_.all_reduces, sizeof value);
    const Recorded recorded(*this, Collective::kOther, kAllReduceNames[static_cast<int>(op)], site,
                            sizeof value, DType::kFloat64);
    do_all_reduce_double(value, op);
    return value;
}

std::unique_ptr<Communicator> Communicator::split(int color,
                                                  const std::string& name,
                                                  CallSite site) {
    const Recorded recorded(*this, Collective::kOther, "split", site);
    return do_split(color, name);
}

Communicator::OnNode Communicator::on_node(CallSite site) {
    const Recorded recorded(*this, Collective::kOther, "on_node", site);
    return do_on_node();
}

CommunicationTimes Communicator::take_times() { return std::exchange(times_, {}); }

namespace {

class SingleCommunicator final : public Communicator {
  public:
    explicit SingleCommunicator(Device device) : device_(device) {
        if (device != Device::kCpu) host_ = make_single_communicator();
    }
    int rank() const override { return 0; }
    int size() const override { return 1; }
    Device device() const override { return device_; }
    Communicator& host() override { return host_ ? *host_ : *this; }
    void set_timeout(double) override {}  // never waits

  protected:
    int do_start_all_reduce(const Tensor&, ReduceOp) override { return 0; }
    int do_start_reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp) override {
        return copy(input, output);
    }
    int do_start_all_gather(const Tensor& input, const Tensor& output) override {
        return copy(input, output);
    }
    void do_broadcast(const Tensor&, int) override {}
    // There is no other rank: refused before.
    void do_send(const Tensor&, int) override {}
    void do_receive(const Tensor&, int) override {}
    void do_barrier() override {}
    void do_all_reduce_double(double&, ReduceOp) override {}
    std::unique_ptr<Communicator> do_split(int, const std::string&) override {
        return make_single_communicator(device_);
    }

  private:
    static int copy(const Tensor& from, const Tensor& to) {
        if (from.numel() > 0 && from.raw() != to.raw()) {
            to.view({to.numel()}).copy_from(from.view({from.numel()}));
        }
        return 0;
    }

    Device device_;
    std::unique_ptr<Communicator> host_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator(Device device) {
    return std::make_unique<SingleCommunicator>(device);
}

}  // namespace evenkeel
