#include "parallel/communicator.h"

#include <atomic>
#include <exception>
#include <utility>

#include "parallel/collective_checks.h"

namespace evenkeel {
namespace {

std::atomic<std::int64_t> dropped_handles{0};

}  // namespace

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

double Communicator::take_exposed_seconds() { return std::exchange(exposed_seconds_, 0.0); }

double Communicator::all_reduce_scalar(double value, ReduceOp op) {
    all_reduce_doubles(&value, 1, op);
    return value;
}

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

    Pending start_all_reduce(const Tensor& tensor, ReduceOp op) override {
        check_reducible("all_reduce", "tensor", tensor, op, device_);
        count(counts_.all_reduces, tensor.bytes());
        return started(tensor, tensor);
    }
    Pending start_reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op) override {
        check_blocks("reduce_scatter", "output", output, input, 1, device_);
        check_reducible("reduce_scatter", "input", input, op, device_);
        copy(input, output);
        count(counts_.reduce_scatters, input.bytes());
        return started(input, output);
    }
    Pending start_all_gather(const Tensor& input, const Tensor& output) override {
        check_blocks("all_gather", "input", input, output, 1, device_);
        copy(input, output);
        count(counts_.all_gathers, output.bytes());
        return started(input, output);
    }
    void broadcast(const Tensor& tensor, int root) override {
        check_block("broadcast", "tensor", tensor, device_);
        check_peer("broadcast", "root", root, *this);
        count(counts_.broadcasts, tensor.bytes());
    }
    void send(const Tensor&, int destination) override { refuse("send", destination); }
    void receive(const Tensor&, int source) override { refuse("receive", source); }
    void barrier() override {}
    void set_timeout(double) override {}  // never waits
    std::unique_ptr<Communicator> split(int) override { return make_single_communicator(device_); }

  protected:
    void all_reduce_doubles(double*, std::int64_t n, ReduceOp) override {
        count(counts_.all_reduces, static_cast<std::size_t>(n) * sizeof(double));
    }

  private:
    void count(std::int64_t& operations, std::size_t bytes) {
        ++operations;
        counts_.bytes += static_cast<std::int64_t>(bytes);
    }
    static void copy(const Tensor& from, const Tensor& to) {
        if (from.numel() > 0 && from.raw() != to.raw()) {
            to.view({to.numel()}).copy_from(from.view({from.numel()}));
        }
    }
    [[noreturn]] static void refuse(const char* op, int peer) {
        throw_error(ErrorCode::kInvalidArgument, op,
                    concat("rank: got ", peer, ", but a group of one has no other rank"));
    }

    Device device_;
    std::unique_ptr<Communicator> host_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator(Device device) {
    return std::make_unique<SingleCommunicator>(device);
}

}  // namespace evenkeel
