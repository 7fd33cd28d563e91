// Streams and events. Work is done when the call that asks for it returns, so nothing ever waits:
// what these check is that handles are alive and that events were recorded.
#include <cuda_runtime_api.h>

#include <chrono>
#include <set>

#include "tests/gpu_emulator/context.h"

namespace gpu_emulator {
namespace {

using Clock = std::chrono::steady_clock;

struct StreamState {
    unsigned flags = 0;
    int priority = 0;
};

struct EventState {
    bool has_timing = true;
    bool recorded = false;
    Clock::time_point time;
};

struct Handles {
    std::set<void*> streams, events;
};

Handles& handles() {
    // Never destroyed: static destructors of the program still free streams.
    static auto* const only = new Handles;
    return *only;
}

template <typename Body>
cudaError_t stream_call(cudaStream_t stream, Body body) {
    return api_call([&]() -> cudaError_t {
        return is_stream(stream) ? body() : cudaErrorInvalidResourceHandle;
    });
}

EventState* state_of(cudaEvent_t event) {
    return handles().events.count(event) == 0 ? nullptr : reinterpret_cast<EventState*>(event);
}

template <typename Body>
cudaError_t event_call(cudaEvent_t event, Body body) {
    return api_call([&]() -> cudaError_t {
        EventState* const state = state_of(event);
        return state == nullptr ? cudaErrorInvalidResourceHandle : body(*state);
    });
}

}  // namespace

bool is_stream(cudaStream_t stream) {
    return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread ||
           handles().streams.count(stream) != 0;
}

}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    return api_call([&]() -> cudaError_t {
        if (stream == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
        *stream = reinterpret_cast<cudaStream_t>(new StreamState{flags, priority});
        handles().streams.insert(*stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return api_call([&]() -> cudaError_t {
        if (handles().streams.erase(stream) == 0) return cudaErrorInvalidResourceHandle;
        delete reinterpret_cast<StreamState*>(stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return stream_call(stream, [] { return cudaSuccess; });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return stream_call(stream, [] { return cudaSuccess; });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return event_call(event, [&](EventState&) {
        return is_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    return api_call([&]() -> cudaError_t {
        if (event == nullptr) return cudaErrorInvalidValue;
        auto* state = new EventState;
        state->has_timing = (flags & cudaEventDisableTiming) == 0;
        *event = reinterpret_cast<cudaEvent_t>(state);
        handles().events.insert(*event);
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return event_call(event, [&](EventState& state) {
        handles().events.erase(event);
        delete &state;
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return event_call(event, [&](EventState& state) -> cudaError_t {
        if (!is_stream(stream)) return cudaErrorInvalidResourceHandle;
        state.recorded = true;
        state.time = Clock::now();
        return cudaSuccess;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return event_call(event, [](EventState&) { return cudaSuccess; });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return event_call(event, [](EventState&) { return cudaSuccess; });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    return event_call(from, [&](EventState& first) -> cudaError_t {
        EventState* const second = state_of(to);
        const bool usable = second != nullptr && first.has_timing && second->has_timing &&
                            first.recorded && second->recorded;
        if (!usable) return cudaErrorInvalidResourceHandle;
        const std::chrono::duration<float, std::milli> elapsed = second->time - first.time;
        *milliseconds = elapsed.count();
        return cudaSuccess;
    });
}

}  // extern "C"
