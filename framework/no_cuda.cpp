// Stands in for the CUDA sources of this folder in a build without CUDA.
#include "framework/device_cuda.h"
#include "framework/gemm_cuda.h"
#include "framework/graph.h"
#include "framework/optimizer/adamw_cuda.h"
#include "framework/optimizer/gradient_norm_cuda.h"
#include "framework/stream.h"
#include "framework/upload.h"

namespace evenkeel {
namespace {

[[noreturn]] void throw_not_built(const char* op) {
    throw_error(ErrorCode::kNotBuilt, op,
                "device: got cuda, want cpu (this build has no CUDA back end)");
}

}  // namespace

Stream::Stream(StreamPriority) { throw_not_built("Stream"); }
Stream::~Stream() = default;
void Stream::synchronize() const { throw_not_built("Stream::synchronize"); }
void Stream::wait(const Event&) const { throw_not_built("Stream::wait"); }
bool Stream::is_capturing() const { throw_not_built("Stream::is_capturing"); }
const Stream& Stream::current() { throw_not_built("Stream::current"); }

StreamScope::StreamScope(const Stream& stream) : before_(&stream) {
    throw_not_built("StreamScope");
}
StreamScope::~StreamScope() = default;

void set_wait_guard(WaitGuard) {}  // nothing waits here

Event::Event(EventTiming) { throw_not_built("Event"); }
Event::~Event() = default;
void Event::record(const Stream&) { throw_not_built("Event::record"); }
void Event::synchronize() const { throw_not_built("Event::synchronize"); }
bool Event::done() const { throw_not_built("Event::done"); }
double Event::elapsed_ms(const Event&, const Event&) { throw_not_built("Event::elapsed_ms"); }

Graph Graph::capture(const Stream&, const std::function<void()>&) {
    throw_not_built("Graph::capture");
}
Graph::Graph(Graph&&) noexcept {}
Graph& Graph::operator=(Graph&&) noexcept { return *this; }
Graph::~Graph() = default;
void Graph::launch() const { throw_not_built("Graph::launch"); }

struct UploadRing::Slots {};
UploadRing::UploadRing(int) { throw_not_built("UploadRing"); }
UploadRing::~UploadRing() = default;
Tensor UploadRing::upload(const Tensor&) { throw_not_built("UploadRing"); }
void UploadRing::upload_to(const Tensor&, const Tensor&) { throw_not_built("UploadRing"); }

namespace cuda {

int device_count() { return 0; }
std::string why_not() { return "this build has no CUDA back end"; }
GpuDescription describe() { throw_not_built("describe_gpu"); }
void use_gpu(int) { throw_not_built("use_gpu"); }

void memory_info(std::size_t&, std::size_t&) { throw_not_built("memory_of"); }
Allocation allocate(std::size_t) { throw_not_built("Buffer"); }
void release(const Allocation&) noexcept {}
void release_unused() { throw_not_built("Buffer::release_unused"); }
void fill(const Tensor&, float) { throw_not_built("Tensor::fill"); }
void copy(const Tensor&, const Tensor&) { throw_not_built("Tensor::copy_from"); }
void gemm(const Tensor&, const Tensor&, const Tensor&, const GemmOptions&) {
    throw_not_built("gemm");
}
void adamw_step(
    const ParameterBuckets&, const AdamWScalars&, double, const UpdateLimits&, const Tensor&) {
    throw_not_built("adamw_step");
}
void chunk_sums_of_squares(const ParameterBuckets&, const Tensor&) {
    throw_not_built("chunk_sums_of_squares");
}
void add_in_order(const Tensor&, const Tensor&) { throw_not_built("add_in_order"); }

}  // namespace cuda
}  // namespace evenkeel
