// Captures and graphs of the emulated runtime.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "tests/gpu_emulator/capture.h"
#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/memory_table.h"

namespace gpu_emulator {
namespace {

struct Graph {
    std::vector<Node> nodes;
    std::size_t lanes = 1;
    bool has_memory = false;
    bool instantiated = false;
};

struct GraphExec {
    int device = 0;
    std::vector<Node> nodes;
    std::vector<std::shared_ptr<Lane>> lanes;        // but for the first, which is the stream's
    std::map<std::uint64_t, std::size_t> outliving;  // memory that the graph leaves allocated
    std::size_t peak_bytes = 0;
    bool frees_on_launch = false;  // what the launch before left and nobody has freed
    OperationPtr last;
};

struct Graphs {
    std::map<void*, std::unique_ptr<Graph>> graphs;
    std::map<void*, std::unique_ptr<GraphExec>> execs;
};

Graphs& graphs() {
    // Never destroyed: static destructors of the program still destroy graphs.
    static auto* const only = new Graphs;
    return *only;
}

Graph* find_graph(cudaGraph_t graph) {
    const auto found = graphs().graphs.find(graph);
    return found == graphs().graphs.end() ? nullptr : found->second.get();
}

GraphExec* find_exec(cudaGraphExec_t exec) {
    const auto found = graphs().execs.find(exec);
    return found == graphs().execs.end() ? nullptr : found->second.get();
}

// Memory nodes in the order of the capture: what is left, and the most that there is at a time.
void add_up_memory(GraphExec& exec) {
    std::size_t now = 0;
    std::map<std::uint64_t, std::size_t>& living = exec.outliving;
    for (const Node& node : exec.nodes) {
        if (node.task.allocates != 0) {
            living[node.task.allocates] = node.task.bytes;
            now += node.task.bytes;
            exec.peak_bytes = std::max(exec.peak_bytes, now);
        }
        if (node.task.frees != 0) {
            now -= living[node.task.frees];
            living.erase(node.task.frees);
        }
    }
}

cudaError_t instantiate(cudaGraphExec_t* handle, Graph& graph, bool frees_on_launch) {
    // As on a GPU, where memory nodes have one address.
    if (graph.has_memory && graph.instantiated) return cudaErrorNotSupported;
    auto exec = std::make_unique<GraphExec>();
    exec->device = current_device();
    exec->nodes = graph.nodes;
    exec->frees_on_launch = frees_on_launch;
    add_up_memory(*exec);
    DeviceAccount& account = account_of(exec->device);
    if (!account.make_room(exec->peak_bytes)) return cudaErrorMemoryAllocation;
    account.allocated += exec->peak_bytes;
    while (exec->lanes.size() + 1 < graph.lanes) exec->lanes.push_back(std::make_shared<Lane>());
    graph.instantiated = true;
    *handle = reinterpret_cast<cudaGraphExec_t>(exec.get());
    graphs().execs[*handle] = std::move(exec);
    return cudaSuccess;
}

cudaError_t launch_graph(GraphExec& exec, StreamState& stream) {
    if (stream.capture != nullptr) {
        invalidate(*stream.capture);
        report("cudaGraphLaunch: graphs within graphs are not emulated");
        return cudaErrorNotSupported;
    }
    if (exec.device != stream.device) return cudaErrorInvalidValue;
    const cudaError_t error = check_implicit_wait(stream);
    if (error != cudaSuccess) return error;
    std::vector<OperationPtr> before = needs_of_next(stream);
    before.push_back(exec.last);
    auto& blocks = memory_table().device;
    for (const auto& [address, bytes] : exec.outliving) {
        const auto found = blocks.find(address);
        if (found == blocks.end() || found->second.kind != MemoryKind::kGraph) continue;
        if (!exec.frees_on_launch) {
            report("cudaGraphLaunch: memory of the launch before is not freed");
            return cudaErrorInvalidValue;
        }
        Task free;
        free.what = "memory of the launch before";
        free.bookkeeping = true;
        free.frees = address;
        free.work = [address = address] {
            return [address] {
                release(address);
                return true;
            };
        };
        before = {add_operation(std::move(free), stream.lane, std::move(before))};
    }
    for (const auto& [address, bytes] : exec.outliving) {
        blocks[address] = {bytes, exec.device, MemoryKind::kGraph};
    }
    std::vector<OperationPtr> made;
    for (const Node& node : exec.nodes) {
        std::vector<OperationPtr> needs;
        if (node.needs.empty()) needs = before;
        for (const std::size_t need : node.needs) needs.push_back(made[need]);
        if (node.task.waits_for != nullptr) needs.push_back(node.task.waits_for->recorded);
        made.push_back(add_operation(
            node.task, node.lane == 0 ? stream.lane : exec.lanes[node.lane - 1], std::move(needs)));
        if (node.task.records != nullptr) {
            node.task.records->recorded = made.back();
            node.task.records->captured = false;
        }
    }
    Task end;
    end.what = "end of a graph";
    end.bookkeeping = true;
    std::vector<OperationPtr> all = made;
    all.insert(all.end(), before.begin(), before.end());
    stream.last = exec.last = add_operation(std::move(end), stream.lane, std::move(all));
    for (const OperationPtr& operation : made) run_some(operation);
    run_some(stream.last);
    return cudaSuccess;
}

template <typename Body>
cudaError_t stream_call(cudaStream_t stream, Body body) {
    return api_call([&]() -> cudaError_t {
        StreamState* const state = find_stream(stream);
        return state == nullptr ? cudaErrorInvalidResourceHandle : body(*state);
    });
}

cudaStreamCaptureStatus status_of(const StreamState& stream) {
    if (stream.capture == nullptr) return cudaStreamCaptureStatusNone;
    return stream.capture->invalid ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
}

}  // namespace
}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return stream_call(stream, [&](StreamState& state) { return begin_capture(state, mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return stream_call(stream, [&](StreamState& state) -> cudaError_t {
        if (graph == nullptr) return cudaErrorInvalidValue;
        *graph = nullptr;
        std::shared_ptr<Capture> capture;
        const cudaError_t error = end_capture(state, capture);
        if (error != cudaSuccess) return error;
        auto made = std::make_unique<Graph>();
        made->nodes = std::move(capture->nodes);
        made->lanes = capture->lanes;
        for (const Node& node : made->nodes) {
            made->has_memory = made->has_memory || node.task.allocates != 0;
        }
        *graph = reinterpret_cast<cudaGraph_t>(made.get());
        graphs().graphs[*graph] = std::move(made);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return stream_call(stream, [&](StreamState& state) -> cudaError_t {
        if (status == nullptr) return cudaErrorInvalidValue;
        const cudaError_t error = check_implicit_wait(state);
        if (error == cudaSuccess) *status = status_of(state);
        return error;
    });
}

#if CUDART_VERSION >= 13000  // other parameters before
// Without the graph and its nodes, which are no handles here before the capture ends.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long* id,
                                     cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges,
                                     size_t* dependency_count) {
    return stream_call(stream, [&](StreamState& state) -> cudaError_t {
        if (status == nullptr) return cudaErrorInvalidValue;
        if (graph != nullptr || dependencies != nullptr || edges != nullptr ||
            dependency_count != nullptr) {
            report("cudaStreamGetCaptureInfo: the graph and its nodes are not emulated");
            return cudaErrorNotSupported;
        }
        *status = status_of(state);
        if (id != nullptr && state.capture != nullptr) *id = state.capture->id;
        return cudaSuccess;
    });
}
#endif

// Modes belong to captures here, not to threads.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    thread_local cudaStreamCaptureMode of_thread = cudaStreamCaptureModeGlobal;
    return api_call([&]() -> cudaError_t {
        if (mode == nullptr) return cudaErrorInvalidValue;
        std::swap(*mode, of_thread);
        set_unsafe_calls_allowed(of_thread == cudaStreamCaptureModeRelaxed);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec,
                                 cudaGraph_t graph,
                                 unsigned long long flags) {
    return api_call([&]() -> cudaError_t {
        Graph* const found = find_graph(graph);
        if (exec == nullptr || found == nullptr) return cudaErrorInvalidValue;
        if ((flags & ~cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0) {
            report("cudaGraphInstantiate: the flags are not emulated");
            return cudaErrorNotSupported;
        }
        return instantiate(exec, *found, flags != 0);
    });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec,
                                          cudaGraph_t graph,
                                          unsigned long long flags) {
    return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    return stream_call(stream, [&](StreamState&) {
        return find_exec(exec) == nullptr ? cudaErrorInvalidValue : cudaSuccess;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return stream_call(stream, [&](StreamState& state) {
        GraphExec* const found = find_exec(exec);
        return found == nullptr ? cudaErrorInvalidValue : launch_graph(*found, state);
    });
}

// The nodes themselves are no handles here: only their number is told.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    return api_call([&]() -> cudaError_t {
        const Graph* const found = find_graph(graph);
        if (found == nullptr || count == nullptr) return cudaErrorInvalidValue;
        if (nodes != nullptr) {
            report("cudaGraphGetNodes: nodes are not emulated");
            return cudaErrorNotSupported;
        }
        *count = found->nodes.size();
        return cudaSuccess;
    });
}

// A launch that goes on is not disturbed.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return api_call([&]() -> cudaError_t {
        const GraphExec* const found = find_exec(exec);
        if (found == nullptr) return cudaErrorInvalidValue;
        account_of(found->device).allocated -= found->peak_bytes;
        graphs().execs.erase(exec);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return api_call([&]() -> cudaError_t {
        return graphs().graphs.erase(graph) == 0 ? cudaErrorInvalidValue : cudaSuccess;
    });
}

}  // extern "C"
