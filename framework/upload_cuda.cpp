#include <cstring>
#include <vector>

#include "framework/cuda.h"
#include "framework/error.h"
#include "framework/stream.h"
#include "framework/upload.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "UploadRing";

class Slot {
  public:
    Slot() = default;
    ~Slot() {
        if (data_ != nullptr && cudaFreeHost(data_) != cudaSuccess) cudaGetLastError();
    }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    void send(const Tensor& target, const Tensor& source) {
        if (!copied_.done()) copied_.synchronize();
        reserve(source.bytes());
        std::memcpy(data_, source.raw(), source.bytes());
        const Stream& stream = Stream::current();
        cuda::check(cudaMemcpyAsync(target.raw(), data_, source.bytes(), cudaMemcpyHostToDevice,
                                    stream.handle()),
                    kOp, "cudaMemcpyAsync");
        copied_.record(stream);
    }

    void wait() const { copied_.synchronize(); }
    // Leaves the memory to copies that may never end.
    void abandon() { data_ = nullptr; }

  private:
    void reserve(std::size_t bytes) {
        if (bytes <= bytes_) return;
        if (data_ != nullptr) cuda::check(cudaFreeHost(data_), kOp, "cudaFreeHost");
        data_ = nullptr;
        bytes_ = 0;
        cuda::check(cudaMallocHost(&data_, bytes), kOp, "cudaMallocHost");
        bytes_ = bytes;
    }

    Event copied_{EventTiming::kOff};
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

void check_not_captured() {
    EVENKEEL_CHECK(!Stream::current().is_capturing(), kOp,
                   "stream: got one that is captured into a graph, want the upload before the "
                   "graph is launched");
}

}  // namespace

struct UploadRing::Slots {
    explicit Slots(int count) : slots(static_cast<std::size_t>(count)) {}
    ~Slots() {
        try {
            for (const Slot& slot : slots) slot.wait();
        } catch (const Error&) {
            // To free any pinned memory would wait for the whole GPU.
            for (Slot& slot : slots) slot.abandon();
        }
    }
    Slots(const Slots&) = delete;
    Slots& operator=(const Slots&) = delete;
    std::vector<Slot> slots;
    std::size_t next = 0;
};

UploadRing::UploadRing(int slots) {
    EVENKEEL_CHECK(slots >= 1, kOp, "slots: got ", slots, ", want at least 1");
    slots_ = std::make_unique<Slots>(slots);
}

UploadRing::~UploadRing() = default;

Tensor UploadRing::upload(const Tensor& source) {
    check_not_captured();
    const Tensor target = Tensor::uninitialized(source.shape(), source.dtype(), Device::kCuda);
    upload_to(target, source);
    return target;
}

void UploadRing::upload_to(const Tensor& target, const Tensor& source) {
    EVENKEEL_CHECK(source.device() == Device::kCpu, kOp, "source: got a tensor on ",
                   name_of(source.device()), ", want one on cpu");
    EVENKEEL_CHECK(target.device() == Device::kCuda, kOp, "target: got a tensor on ",
                   name_of(target.device()), ", want one on cuda");
    check_shape(kOp, "target", target, source.shape());
    check_dtype(kOp, "target", target, source.dtype());
    EVENKEEL_CHECK(target.is_contiguous(), kOp, "target: got strides ", to_string(target.strides()),
                   ", want a contiguous tensor");
    check_not_captured();
    if (source.numel() == 0) return;
    slots_->slots[slots_->next].send(target, source.contiguous());
    slots_->next = (slots_->next + 1) % slots_->slots.size();
}

}  // namespace evenkeel
