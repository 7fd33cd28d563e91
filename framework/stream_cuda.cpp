#include "framework/cuda.h"
#include "framework/gemm_cuda.h"
#include "framework/stream.h"

namespace evenkeel {
namespace {

thread_local const Stream* current_stream = nullptr;

}  // namespace

Stream::Stream() {
    cudaStream_t stream = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "Stream",
                "cudaStreamCreateWithFlags");
    // Work in flight ends first; the driver sees to that.
    handle_ = {stream, [](cudaStream_t owned) {
                   cuda::release_gemm_workspace(owned);
                   cudaStreamDestroy(owned);
               }};
}

Stream::~Stream() = default;

void Stream::synchronize() const {
    cuda::check(cudaStreamSynchronize(handle()), "Stream::synchronize", "cudaStreamSynchronize");
}

void Stream::wait(const Event& event) const {
    cuda::check(cudaStreamWaitEvent(handle(), event.handle(), 0), "Stream::wait",
                "cudaStreamWaitEvent");
}

const Stream& Stream::current() {
    static const Stream default_stream{Default{}};
    return current_stream == nullptr ? default_stream : *current_stream;
}

StreamScope::StreamScope(const Stream& stream) : before_(current_stream) {
    current_stream = &stream;
}
StreamScope::~StreamScope() { current_stream = before_; }

Event::Event() { cuda::check(cudaEventCreate(&handle_), "Event", "cudaEventCreate"); }
Event::~Event() { cudaEventDestroy(handle_); }

void Event::record(const Stream& stream) {
    cuda::check(cudaEventRecord(handle_, stream.handle()), "Event::record", "cudaEventRecord");
}

void Event::synchronize() const {
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
