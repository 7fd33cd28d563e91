// Streams and events of the emulated runtime.
#include <cuda_runtime_api.h>

#include <map>

#include "tests/gpu_emulator/capture.h"
#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {
namespace {

struct Handles {
    std::map<void*, std::unique_ptr<StreamState>> streams;
    std::map<void*, std::shared_ptr<EventState>> events;
    std::map<int, std::unique_ptr<StreamState>> legacy;  // by device
    std::vector<std::unique_ptr<StreamState>> ending;    // destroyed with work in them
};

Handles& handles() {
    // Never destroyed: static destructors of the program still free streams.
    static auto* const only = new Handles;
    return *only;
}

StreamState& per_thread_stream(int device) {
    // Never destroyed: other threads may wait for what a thread left behind.
    thread_local auto* const streams = new std::map<int, StreamState*>;
    StreamState*& stream = (*streams)[device];
    if (stream == nullptr) {
        auto owned = std::make_unique<StreamState>();
        owned->device = device;
        stream = owned.get();
        handles().streams[stream] = std::move(owned);
    }
    return *stream;
}

template <typename Body>
cudaError_t stream_call(cudaStream_t stream, Body body) {
    return api_call([&]() -> cudaError_t {
        StreamState* const state = find_stream(stream);
        return state == nullptr ? cudaErrorInvalidResourceHandle : body(*state);
    });
}

template <typename Body>
cudaError_t event_call(cudaEvent_t event, Body body) {
    return api_call([&]() -> cudaError_t {
        const std::shared_ptr<EventState> state = find_event(event);
        return state == nullptr ? cudaErrorInvalidResourceHandle : body(state);
    });
}

Task order_task(const char* what) {
    Task task;
    task.what = what;
    task.bookkeeping = true;
    return task;
}

cudaError_t record(const std::shared_ptr<EventState>& event, StreamState& stream, bool external) {
    if (event->device != stream.device) return cudaErrorInvalidResourceHandle;
    if (stream.capture != nullptr && !external) return capture_record(stream, *event);
    Task task = order_task("cudaEventRecord");
    if (stream.capture != nullptr) task.records = event;
    OperationPtr operation;
    const cudaError_t error = submit(stream, std::move(task), &operation);
    if (error == cudaSuccess && operation != nullptr) {
        event->recorded = std::move(operation);
        event->captured = false;
    }
    return error;
}

cudaError_t wait(StreamState& stream, const std::shared_ptr<EventState>& event, bool external) {
    if (stream.capture != nullptr || event->captured) return capture_wait(stream, event, external);
    if (event->recorded == nullptr) return cudaSuccess;
    const cudaError_t error = check_implicit_wait(stream);
    if (error != cudaSuccess) return error;
    std::vector<OperationPtr> needs = needs_of_next(stream);
    needs.push_back(event->recorded);
    stream.last = add_operation(order_task("cudaStreamWaitEvent"), stream.lane, std::move(needs));
    run_some(stream.last);
    return cudaSuccess;
}

// What must be done for a stream to be idle. The default stream is not before those that wait for it.
std::vector<OperationPtr> all_of(const StreamState& stream) {
    if (stream.legacy) return needs_of_next(stream);
    return {stream.last};
}

cudaError_t after_wait() {
    trim_pools();
    return context_error();
}

}  // namespace

StreamState& legacy_stream(int device) {
    std::unique_ptr<StreamState>& stream = handles().legacy[device];
    if (stream == nullptr) {
        stream = std::make_unique<StreamState>();
        stream->device = device;
        stream->legacy = true;
    }
    return *stream;
}

StreamState* find_stream(cudaStream_t stream) {
    if (stream == nullptr || stream == cudaStreamLegacy) return &legacy_stream(current_device());
    if (stream == cudaStreamPerThread) return &per_thread_stream(current_device());
    const auto found = handles().streams.find(stream);
    return found == handles().streams.end() ? nullptr : found->second.get();
}

std::shared_ptr<EventState> find_event(cudaEvent_t event) {
    const auto found = handles().events.find(event);
    return found == handles().events.end() ? nullptr : found->second;
}

std::vector<StreamState*> streams_of(int device) {
    std::erase_if(handles().ending, [](const auto& stream) { return stream->last->done; });
    std::vector<StreamState*> streams{&legacy_stream(device)};
    for (const auto& [handle, stream] : handles().streams) {
        if (stream->device == device) streams.push_back(stream.get());
    }
    for (const auto& stream : handles().ending) {
        if (stream->device == device) streams.push_back(stream.get());
    }
    return streams;
}

bool is_stream(cudaStream_t stream) { return find_stream(stream) != nullptr; }

cudaError_t submit(StreamState& stream, Task task, OperationPtr* operation) {
    if (stream.capture != nullptr) return capture_task(stream, std::move(task));
    const cudaError_t error = check_implicit_wait(stream);
    if (error != cudaSuccess) return error;
    stream.last = add_operation(std::move(task), stream.lane, needs_of_next(stream));
    if (operation != nullptr) *operation = stream.last;
    run_some(stream.last);
    return cudaSuccess;
}

}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    return api_call([&]() -> cudaError_t {
        if (stream == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
        auto state = std::make_unique<StreamState>();
        state->device = current_device();
        state->flags = flags;
        state->priority = priority;
        *stream = reinterpret_cast<cudaStream_t>(state.get());
        handles().streams[*stream] = std::move(state);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return api_call([&] {
        if (least != nullptr) *least = 0;
        if (greatest != nullptr) *greatest = -5;
        return cudaSuccess;
    });
}

// The work that is in the stream goes on.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return api_call([&]() -> cudaError_t {
        const auto found = handles().streams.find(stream);
        if (found == handles().streams.end()) return cudaErrorInvalidResourceHandle;
        leave_capture(*found->second);
        if (found->second->last != nullptr && !found->second->last->done) {
            handles().ending.push_back(std::move(found->second));
        }
        handles().streams.erase(found);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return stream_call(stream, [](StreamState& state) -> cudaError_t {
        const cudaError_t error = check_asked(state);
        if (error != cudaSuccess) return error;
        count_host_wait("cudaStreamSynchronize");
        for (const OperationPtr& operation : all_of(state)) wait_for(operation);
        return after_wait();
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return stream_call(stream, [](StreamState& state) -> cudaError_t {
        const cudaError_t error = check_asked(state);
        if (error != cudaSuccess) return error;
        run_one();
        for (const OperationPtr& operation : all_of(state)) {
            if (operation != nullptr && !operation->done) return cudaErrorNotReady;
        }
        for (const OperationPtr& operation : all_of(state)) wait_for(operation);
        return context_error();
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return event_call(event, [&](const std::shared_ptr<EventState>& state) -> cudaError_t {
        StreamState* const waiting = find_stream(stream);
        if (waiting == nullptr) return cudaErrorInvalidResourceHandle;
        if (flags > cudaEventWaitExternal) return cudaErrorInvalidValue;
        return wait(*waiting, state, flags == cudaEventWaitExternal);
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    return api_call([&]() -> cudaError_t {
        if (event == nullptr) return cudaErrorInvalidValue;
        auto state = std::make_shared<EventState>();
        state->device = current_device();
        state->has_timing = (flags & cudaEventDisableTiming) == 0;
        *event = reinterpret_cast<cudaEvent_t>(state.get());
        handles().events[*event] = std::move(state);
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return event_call(event, [&](const std::shared_ptr<EventState>&) {
        handles().events.erase(event);
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return event_call(event, [&](const std::shared_ptr<EventState>& state) -> cudaError_t {
        StreamState* const recording = find_stream(stream);
        if (recording == nullptr) return cudaErrorInvalidResourceHandle;
        if (flags > cudaEventRecordExternal) return cudaErrorInvalidValue;
        return record(state, *recording, flags == cudaEventRecordExternal);
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return event_call(event, [](const std::shared_ptr<EventState>& state) -> cudaError_t {
        const cudaError_t error = check_asked(*state);
        if (error != cudaSuccess) return error;
        count_host_wait("cudaEventSynchronize");
        wait_for(state->recorded);
        return after_wait();
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return event_call(event, [](const std::shared_ptr<EventState>& state) -> cudaError_t {
        const cudaError_t error = check_asked(*state);
        if (error != cudaSuccess) return error;
        run_one();
        if (state->recorded != nullptr && !state->recorded->done) return cudaErrorNotReady;
        wait_for(state->recorded);
        return context_error();
    });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    return event_call(from, [&](const std::shared_ptr<EventState>& first) -> cudaError_t {
        const std::shared_ptr<EventState> second = find_event(to);
        const bool usable = second != nullptr && first->has_timing && second->has_timing &&
                            first->recorded != nullptr && second->recorded != nullptr;
        if (!usable) return cudaErrorInvalidResourceHandle;
        if (!first->recorded->done || !second->recorded->done) return cudaErrorNotReady;
        const std::chrono::duration<float, std::milli> elapsed =
            second->recorded->time - first->recorded->time;
        *milliseconds = elapsed.count();
        return cudaSuccess;
    });
}

}  // extern "C"
