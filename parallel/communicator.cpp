#include "parallel/communicator.h"

#include <cstring>

#include "parallel/collective_checks.h"

namespace evenkeel {

double Communicator::all_reduce_scalar(double value, ReduceOp op) {
    all_reduce_doubles(&value, 1, op);
    return value;
}

namespace {

class SingleCommunicator final : public Communicator {
  public:
    int rank() const override { return 0; }
    int size() const override { return 1; }

    void all_reduce(const Tensor& tensor, ReduceOp) override {
        check_reducible("all_reduce", "tensor", tensor);
        count(counts_.all_reduces, tensor.bytes());
    }
    void reduce_scatter(const Tensor& input, const Tensor& output) override {
        check_blocks("reduce_scatter", "output", output, input, 1);
        check_reducible("reduce_scatter", "input", input);
        copy(input, output);
        count(counts_.reduce_scatters, input.bytes());
    }
    void all_gather(const Tensor& input, const Tensor& output) override {
        check_blocks("all_gather", "input", input, output, 1);
        copy(input, output);
        count(counts_.all_gathers, output.bytes());
    }
    void broadcast(const Tensor& tensor, int root) override {
        check_block("broadcast", "tensor", tensor);
        check_peer("broadcast", "root", root, *this);
        count(counts_.broadcasts, tensor.bytes());
    }
    void send(const Tensor&, int destination) override { refuse("send", destination); }
    void receive(const Tensor&, int source) override { refuse("receive", source); }
    void barrier() override {}
    void set_timeout(double) override {}  // never waits
    std::unique_ptr<Communicator> split(int) override { return make_single_communicator(); }

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
            std::memcpy(to.raw(), from.raw(), from.bytes());
        }
    }
    [[noreturn]] static void refuse(const char* op, int peer) {
        throw_error(ErrorCode::kInvalidArgument, op,
                    concat("rank: got ", peer, ", but a group of one has no other rank"));
    }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
    return std::make_unique<SingleCommunicator>();
}

}  // namespace evenkeel
