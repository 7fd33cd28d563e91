#include <utility>

#include "framework/cuda.h"
#include "framework/device_cuda.h"
#include "framework/error.h"
#include "framework/graph.h"

namespace evenkeel {
namespace {

constexpr const char* kCapture = "Graph::capture";

// Ends the capture in any case: without it the stream could not be used again.
class Capture {
  public:
    explicit Capture(const Stream& stream) : stream_(stream.handle()) {
        cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), kCapture,
                    "cudaStreamBeginCapture");
        open_ = true;
    }
    ~Capture() {
        if (open_) cudaStreamEndCapture(stream_, &graph_);
        if (graph_ != nullptr) cudaGraphDestroy(graph_);
        cudaGetLastError();
    }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;

    cudaGraph_t end() {
        open_ = false;
        const cudaError_t error = cudaStreamEndCapture(stream_, &graph_);
        cuda::check(error, kCapture,
                    error == cudaErrorStreamCaptureUnjoined
                        ? "a stream that joined the work is not waited for at its end"
                        : "the work waits for the GPU, or for work outside of it");
        return graph_;
    }

  private:
    cudaStream_t stream_;
    cudaGraph_t graph_ = nullptr;
    bool open_ = false;
};

}  // namespace

Graph Graph::capture(const Stream& stream, const std::function<void()>& work) {
    EVENKEEL_CHECK(stream.handle() != nullptr, kCapture,
                   "stream: got the default stream, want another one");
    Graph result;
    const StreamScope current(stream);
    const cuda::CaptureMemoryScope memory;
    Capture recording(stream);
    work();
    const cudaGraph_t graph = recording.end();
    cuda::check(cudaGraphGetNodes(graph, nullptr, &result.nodes_), kCapture, "cudaGraphGetNodes");
    cuda::check(
        cudaGraphInstantiate(&result.handle_, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch),
        kCapture, "cudaGraphInstantiate");
    return result;
}

Graph::Graph(Graph&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), nodes_(std::exchange(other.nodes_, 0)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(nodes_, other.nodes_);
    return *this;
}

Graph::~Graph() {
    if (handle_ != nullptr) cudaGraphExecDestroy(handle_);
}

void Graph::launch() const {
    constexpr const char* kOp = "Graph::launch";
    EVENKEEL_CHECK(defined(), kOp, "graph: got an empty one, want one from Graph::capture");
    cuda::check(cudaGraphLaunch(handle_, Stream::current().handle()), kOp, "cudaGraphLaunch");
}

}  // namespace evenkeel
