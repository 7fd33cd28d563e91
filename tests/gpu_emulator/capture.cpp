// What a stream does while it is captured.
#include "tests/gpu_emulator/capture.h"

#include <algorithm>

#include "tests/gpu_emulator/context.h"

namespace gpu_emulator {
namespace {

unsigned long long next_id = 1;
thread_local bool unsafe_calls_allowed = false;

void add_needs(std::vector<std::size_t>& to, const std::vector<std::size_t>& from) {
    for (const std::size_t node : from) {
        if (std::find(to.begin(), to.end(), node) == to.end()) to.push_back(node);
    }
}

cudaError_t fail(Capture& capture, cudaError_t error) {
    invalidate(capture);
    return error;
}

// Whether all that the joined streams do comes before the end of the origin stream.
bool all_joined(const Capture& capture) {
    std::vector<bool> reached(capture.nodes.size(), false);
    std::vector<std::size_t> stack = capture.origin->capture_needs;
    while (!stack.empty()) {
        const std::size_t node = stack.back();
        stack.pop_back();
        if (reached[node]) continue;
        reached[node] = true;
        const std::vector<std::size_t>& needs = capture.nodes[node].needs;
        stack.insert(stack.end(), needs.begin(), needs.end());
    }
    return std::find(reached.begin(), reached.end(), false) == reached.end();
}

}  // namespace

std::vector<std::shared_ptr<Capture>>& captures() {
    static auto* const only = new std::vector<std::shared_ptr<Capture>>;
    return *only;
}

void invalidate(Capture& capture) { capture.invalid = true; }

cudaError_t capture_task(StreamState& stream, Task task) {
    Capture& capture = *stream.capture;
    if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
    capture.nodes.push_back({std::move(task), stream.capture_lane, stream.capture_needs});
    stream.capture_needs = {capture.nodes.size() - 1};
    return cudaSuccess;
}

cudaError_t capture_record(StreamState& stream, EventState& event) {
    if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
    event.captured = true;
    event.capture = stream.capture;
    event.capture_needs = stream.capture_needs;
    return cudaSuccess;
}

cudaError_t capture_wait(StreamState& stream,
                         const std::shared_ptr<EventState>& event,
                         bool external) {
    const std::shared_ptr<Capture> of_event = event->captured ? event->capture.lock() : nullptr;
    if (stream.capture != nullptr) {
        Capture& capture = *stream.capture;
        if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
        if (event->captured) {
            if (of_event == nullptr) return fail(capture, cudaErrorCapturedEvent);
            if (of_event != stream.capture) return fail(capture, cudaErrorStreamCaptureMerge);
            add_needs(stream.capture_needs, event->capture_needs);
            return cudaSuccess;
        }
        if (external) {
            Task task;
            task.what = "cudaStreamWaitEvent";
            task.bookkeeping = true;
            task.waits_for = event;
            return capture_task(stream, std::move(task));
        }
        if (event->recorded == nullptr) return cudaSuccess;
        return fail(capture, cudaErrorStreamCaptureIsolation);
    }
    if (of_event == nullptr) return cudaErrorCapturedEvent;  // its capture has ended
    if (of_event->invalid) return cudaErrorStreamCaptureInvalidated;
    if (stream.legacy) return fail(*of_event, cudaErrorStreamCaptureImplicit);
    stream.capture = of_event;
    stream.capture_lane = of_event->lanes++;
    stream.capture_needs = event->capture_needs;
    of_event->streams.push_back(&stream);
    return cudaSuccess;
}

cudaError_t check_unsafe_call() {
    cudaError_t error = cudaSuccess;
    if (unsafe_calls_allowed) return error;
    for (const auto& capture : captures()) {
        const bool watched = capture->mode == cudaStreamCaptureModeGlobal ||
                             (capture->mode == cudaStreamCaptureModeThreadLocal &&
                              capture->thread == std::this_thread::get_id());
        if (!watched) continue;
        error = fail(*capture, cudaErrorStreamCaptureUnsupported);
    }
    return error;
}

cudaError_t check_asked(const StreamState& stream) {
    if (stream.capture != nullptr) return fail(*stream.capture, cudaErrorStreamCaptureUnsupported);
    const cudaError_t error = check_implicit_wait(stream);
    return error == cudaSuccess ? check_unsafe_call() : error;
}

cudaError_t check_asked(const EventState& event) {
    if (!event.captured) return check_unsafe_call();
    if (const auto capture = event.capture.lock()) invalidate(*capture);
    return cudaErrorCapturedEvent;
}

cudaError_t check_implicit_wait(const StreamState& stream) {
    if (!stream.legacy) return cudaSuccess;
    for (const auto& capture : captures()) {
        for (const StreamState* captured : capture->streams) {
            if (captured->device == stream.device &&
                (captured->flags & cudaStreamNonBlocking) == 0) {
                return fail(*capture, cudaErrorStreamCaptureImplicit);
            }
        }
    }
    return cudaSuccess;
}

cudaError_t begin_capture(StreamState& stream, cudaStreamCaptureMode mode) {
    if (stream.legacy) return cudaErrorStreamCaptureUnsupported;
    if (stream.capture != nullptr) return cudaErrorIllegalState;
    auto capture = std::make_shared<Capture>();
    capture->id = next_id++;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = &stream;
    capture->streams = {&stream};
    stream.capture = capture;
    stream.capture_lane = 0;
    stream.capture_needs.clear();
    captures().push_back(std::move(capture));
    return cudaSuccess;
}

cudaError_t end_capture(StreamState& stream, std::shared_ptr<Capture>& ended) {
    ended = stream.capture;
    if (ended == nullptr) return cudaErrorIllegalState;
    if (ended->mode != cudaStreamCaptureModeRelaxed &&
        ended->thread != std::this_thread::get_id()) {
        return cudaErrorStreamCaptureWrongThread;
    }
    if (ended->origin != &stream) return fail(*ended, cudaErrorStreamCaptureUnmatched);
    const bool joined = all_joined(*ended);
    for (StreamState* part : ended->streams) {
        part->capture = nullptr;
        part->capture_needs.clear();
    }
    std::erase(captures(), ended);
    if (ended->invalid) return cudaErrorStreamCaptureInvalidated;
    return joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

void set_unsafe_calls_allowed(bool allowed) { unsafe_calls_allowed = allowed; }

void leave_capture(StreamState& stream) {
    if (stream.capture == nullptr) return;
    const std::shared_ptr<Capture> capture = stream.capture;
    invalidate(*capture);
    std::erase(capture->streams, &stream);
    if (capture->origin != &stream) return;
    for (StreamState* part : capture->streams) part->capture = nullptr;
    std::erase(captures(), capture);
}

}  // namespace gpu_emulator
