#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "framework/cuda.h"
#include "framework/device_cuda.h"
#include "framework/gemm_cuda.h"
#include "framework/stream.h"

namespace evenkeel {
namespace {

thread_local const Stream* current_stream = nullptr;

struct Guard {
    std::mutex mutex;
    std::shared_ptr<const WaitGuard> call;
};

Guard& guard() {
    static Guard only;
    return only;
}

std::shared_ptr<const WaitGuard> wait_guard() {
    const std::lock_guard lock(guard().mutex);
    return guard().call;
}

// Asks until the answer is no longer cudaErrorNotReady, and lets the guard speak in between. Without
// a guard it asks nothing: the driver waits better.
template <typename Query>
void poll(const char* op, const char* call, Query query) {
    using Clock = std::chrono::steady_clock;
    constexpr int kSpins = 100;
    constexpr std::chrono::milliseconds kPause(1);  // between two calls of the guard
    const std::shared_ptr<const WaitGuard> guarded = wait_guard();
    if (guarded == nullptr) return;
    const Clock::time_point begin = Clock::now();
    Clock::time_point next = begin + kPause;
    for (int asked = 0;; ++asked) {
        const cudaError_t error = query();
        if (error != cudaErrorNotReady) return cuda::check(error, op, call);
        cudaGetLastError();  // that it is not ready is no error
        if (asked < kSpins) continue;
        const Clock::time_point now = Clock::now();
        if (now >= next) {
            (*guarded)(std::chrono::duration<double>(now - begin).count());
            next = now + kPause;
        }
        std::this_thread::yield();
    }
}

}  // namespace

void set_wait_guard(WaitGuard call) {
    const std::lock_guard lock(guard().mutex);
    guard().call = call ? std::make_shared<const WaitGuard>(std::move(call)) : nullptr;
}

void cuda::wait_under_guard(const char* op) {
    const cudaStream_t stream = Stream::current().handle();
    poll(op, "cudaStreamQuery", [stream] { return cudaStreamQuery(stream); });
}

Stream::Stream(StreamPriority priority) {
    cudaStream_t stream = nullptr;
    int least = 0, greatest = 0;
    cuda::check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "Stream",
                "cudaDeviceGetStreamPriorityRange");
    cuda::check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                             priority == StreamPriority::kHigh ? greatest : least),
                "Stream", "cudaStreamCreateWithPriority");
    // Work in flight ends first; the driver sees to that.
    handle_ = {stream, [](cudaStream_t owned) {
                   cuda::release_gemm_workspace(owned);
                   cudaStreamDestroy(owned);
               }};
}

Stream::~Stream() = default;

void Stream::synchronize() const {
    poll("Stream::synchronize", "cudaStreamQuery", [this] { return cudaStreamQuery(handle()); });
    cuda::check(cudaStreamSynchronize(handle()), "Stream::synchronize", "cudaStreamSynchronize");
}

void Stream::wait(const Event& event) const {
    cuda::check(cudaStreamWaitEvent(handle(), event.handle(), 0), "Stream::wait",
                "cudaStreamWaitEvent");
}

bool Stream::is_capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda::check(cudaStreamIsCapturing(handle(), &status), "Stream::is_capturing",
                "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
}

const Stream& Stream::current() {
    static const Stream default_stream{Default{}};
    return current_stream == nullptr ? default_stream : *current_stream;
}

StreamScope::StreamScope(const Stream& stream) : before_(current_stream) {
    current_stream = &stream;
}
StreamScope::~StreamScope() { current_stream = before_; }

Event::Event(EventTiming timing) {
    const unsigned flags = timing == EventTiming::kOn ? cudaEventDefault : cudaEventDisableTiming;
    cuda::check(cudaEventCreateWithFlags(&handle_, flags), "Event", "cudaEventCreateWithFlags");
}
Event::~Event() { cudaEventDestroy(handle_); }

void Event::record(const Stream& stream) {
    cuda::check(cudaEventRecord(handle_, stream.handle()), "Event::record", "cudaEventRecord");
}

void Event::synchronize() const {
    poll("Event::synchronize", "cudaEventQuery", [this] { return cudaEventQuery(handle_); });
    cuda::check(cudaEventSynchronize(handle_), "Event::synchronize", "cudaEventSynchronize");
}

bool Event::done() const {
    const cudaError_t error = cudaEventQuery(handle_);
    if (error == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
    }
    cuda::check(error, "Event::done", "cudaEventQuery");
    return true;
}

double Event::elapsed_ms(const Event& from, const Event& to) {
    constexpr const char* kOp = "Event::elapsed_ms";
    from.synchronize();
    to.synchronize();
    float milliseconds = 0.0f;
    cuda::check(cudaEventElapsedTime(&milliseconds, from.handle(), to.handle()), kOp,
                "cudaEventElapsedTime");
    return milliseconds;
}

}  // namespace evenkeel
