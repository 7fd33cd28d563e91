#include "parallel/staged_communicator.h"

#include <chrono>
#include <map>
#include <utility>

#include "framework/stream.h"

namespace evenkeel {
namespace {

using Clock = std::chrono::steady_clock;

class StagedCommunicator final : public Communicator {
  public:
    explicit StagedCommunicator(std::unique_ptr<Communicator> host) : host_(std::move(host)) {
        enter_log(host_->name());
    }

    int rank() const override { return host_->rank(); }
    int size() const override { return host_->size(); }
    int job_rank(int member) const override { return host_->job_rank(member); }
    Device device() const override { return Device::kCuda; }
    bool fits_graphs() const override { return false; }
    Communicator& host() override { return *host_; }

    void set_timeout(double seconds) override { host_->set_timeout(seconds); }

  protected:
    int do_start_all_reduce(const Tensor& tensor, ReduceOp op) override {
        const Exposed exposed(*this);
        const Tensor staged = stage(input_, tensor);
        host_->all_reduce(staged, op);
        tensor.copy_from(staged);
        return 0;
    }

    int do_start_reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op) override {
        const Exposed exposed(*this);
        const Tensor to = like(output_, output);
        host_->reduce_scatter(stage(input_, input), to, op);
        output.copy_from(to);
        return 0;
    }

    int do_start_all_gather(const Tensor& input, const Tensor& output) override {
        const Exposed exposed(*this);
        const Tensor to = like(output_, output);
        host_->all_gather(stage(input_, input), to);
        output.copy_from(to);
        return 0;
    }

    void do_broadcast(const Tensor& tensor, int root) override {
        const Exposed exposed(*this);
        const Tensor staged = rank() == root ? stage(input_, tensor) : like(input_, tensor);
        host_->broadcast(staged, root);
        if (rank() != root) tensor.copy_from(staged);
    }

    void do_send(const Tensor& tensor, int destination) override {
        const Exposed exposed(*this);
        host_->send(stage(input_, tensor), destination);
    }

    void do_receive(const Tensor& tensor, int source) override {
        const Exposed exposed(*this);
        const Tensor staged = like(input_, tensor);
        host_->receive(staged, source);
        tensor.copy_from(staged);
    }

    OnNode do_on_node() override { return host_->on_node(); }
    void do_barrier() override { host_->barrier(); }
    std::unique_ptr<Communicator> do_split(int color, const std::string& name) override {
        return make_staged_communicator(host_->split(color, name));
    }
    void do_all_reduce_double(double& value, ReduceOp op) override {
        value = host_->all_reduce_scalar(value, op);
    }

  private:
    // Times an operation from when the tensors are there.
    class Exposed {
      public:
        explicit Exposed(StagedCommunicator& group) : group_(group) {
            if (!group_.timing_) return;
            Stream::current().synchronize();
            start_ = Clock::now();
        }
        ~Exposed() {
            if (!group_.timing_) return;
            group_.seconds_of(group_.current_).exposed +=
                std::chrono::duration<double>(Clock::now() - start_).count();
        }
        Exposed(const Exposed&) = delete;
        Exposed& operator=(const Exposed&) = delete;

      private:
        StagedCommunicator& group_;
        Clock::time_point start_;
    };

    using Buffers = std::map<DType, Tensor>;
    // Host memory of the tensor's shape and type, from a buffer that grows as needed.
    static Tensor like(Buffers& buffers, const Tensor& tensor) {
        Tensor& buffer = buffers[tensor.dtype()];
        if (!buffer.defined() || buffer.numel() < tensor.numel()) {
            buffer = Tensor();
            buffer = Tensor::uninitialized({tensor.numel()}, tensor.dtype());
        }
        return buffer.slice(0, 0, tensor.numel()).view(tensor.shape());
    }
    static Tensor stage(Buffers& buffers, const Tensor& tensor) {
        const Tensor staged = like(buffers, tensor);
        staged.copy_from(tensor);
        return staged;
    }

    std::unique_ptr<Communicator> host_;
    Buffers input_, output_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host) {
    return std::make_unique<StagedCommunicator>(std::move(host));
}

}  // namespace evenkeel
