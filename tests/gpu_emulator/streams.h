// Streams, events and what waits in them. Work forms a graph: it follows what came before it in its
// stream and what its stream was told to wait for, and among all work that may run, chance decides
// (EVENKEEL_EMULATOR_SEED; 0: everything runs at once, in order). Streams have moods: work of an
// eager one runs as soon as it may, that of a lazy one when the host waits for it.
//
// All of this is used with the runtime's lock held (context.h).
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu_emulator/queue.h"

namespace gpu_emulator {

struct Operation;
using OperationPtr = std::shared_ptr<Operation>;
struct Capture;
struct EventState;

// Operations that follow one another, for the order of all: a stream, or a branch of a graph.
struct Lane {
    enum class Mood { kEager, kNormal, kLazy };
    Lane();
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    Mood mood = Mood::kNormal;
    std::uint64_t mood_seed = 0;  // it changes with the seed, and now and then
    std::uint32_t number = 0;
};

// What is asked of a stream.
struct Task {
    std::string what;
    Work work;                 // may be empty: only order
    bool bookkeeping = false;  // done even after a kernel failed: it only keeps account
    bool foreign = false;      // of a library; may need other processes
    // Of a graph: events that each launch records, or waits for as they are then.
    std::shared_ptr<EventState> records, waits_for;
    // Stream-ordered memory that this gives out or takes back: its address; 0: none.
    std::uint64_t allocates = 0, frees = 0;
    std::size_t bytes = 0;
};

struct Operation {
    Task task;
    std::shared_ptr<Lane> lane;
    std::vector<OperationPtr> needs, dependents;
    std::size_t unmet = 0;
    Advance advance;
    bool stalled = false;
    std::uint64_t needed_by = 0;  // number of the wait that needs it
    // Happens-before: by number of a lane, how many of its operations are before this one.
    std::vector<std::uint32_t> clock;
    std::uint32_t number = 0;  // stream_races.h
    bool done = false;
    std::chrono::steady_clock::time_point time;  // when it was done
};

struct StreamState {
    int device = 0;
    unsigned flags = cudaStreamDefault;
    int priority = 0;
    bool legacy = false;
    std::shared_ptr<Lane> lane = std::make_shared<Lane>();
    OperationPtr last;
    // While the stream is captured: into what, and the nodes that the next one follows.
    std::shared_ptr<Capture> capture;
    std::vector<std::size_t> capture_needs;
    std::size_t capture_lane = 0;
};

struct EventState {
    int device = 0;
    bool has_timing = true;
    OperationPtr recorded;  // the last record; null: none
    // The last record was captured: into what, after which nodes.
    std::weak_ptr<Capture> capture;
    std::vector<std::size_t> capture_needs;
    bool captured = false;
};

// The stream a handle names for the calling thread; null: none that lives.
StreamState* find_stream(cudaStream_t stream);
std::shared_ptr<EventState> find_event(cudaEvent_t event);
StreamState& legacy_stream(int device);
std::vector<StreamState*> streams_of(int device);

// ---- Scheduling

// Puts a task into a stream or its capture. operation: what was made, null if captured.
cudaError_t submit(StreamState& stream, Task task, OperationPtr* operation = nullptr);
// An operation outside of captures that follows others.
OperationPtr add_operation(Task task,
                           const std::shared_ptr<Lane>& lane,
                           std::vector<OperationPtr> needs);
// What the next operation of a stream follows.
std::vector<OperationPtr> needs_of_next(const StreamState& stream);
// Some work, as the mood is, after something was enqueued.
void run_some(const OperationPtr& newest);
// For calls that only ask: something that can run does.
void run_one();
void wait_for(const OperationPtr& operation);
void wait_for_device(int device);
// The operation that runs now; null outside of Advance.
const Operation* running_operation();

// ---- Capture (capture.cpp). Whatever is not allowed in a capture makes it invalid.

// The stream is captured.
cudaError_t capture_task(StreamState& stream, Task task);
cudaError_t capture_record(StreamState& stream, EventState& event);
// The stream or the event is captured: joins the stream to the event's capture.
cudaError_t capture_wait(StreamState& stream,
                         const std::shared_ptr<EventState>& event,
                         bool external);
void invalidate(Capture& capture);
// cudaSuccess, or why the call is not allowed now: of calls that wait for or change the device at
// once; of waits for, and questions about, a stream or an event.
cudaError_t check_unsafe_call();
cudaError_t check_asked(const StreamState& stream);
cudaError_t check_asked(const EventState& event);
// Work for the default stream waits for captured streams.
cudaError_t check_implicit_wait(const StreamState& stream);

}  // namespace gpu_emulator
