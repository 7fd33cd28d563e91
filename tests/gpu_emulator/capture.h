// Streams that are captured, and the graphs that they become.
#pragma once

#include <thread>

#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {

struct Node {
    Task task;
    std::size_t lane = 0;
    std::vector<std::size_t> needs;
};

struct Capture {
    unsigned long long id = 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    StreamState* origin = nullptr;
    std::vector<StreamState*> streams;  // origin and those that joined
    std::vector<Node> nodes;
    std::size_t lanes = 1;
    bool invalid = false;
};

// The captures that go on.
std::vector<std::shared_ptr<Capture>>& captures();
cudaError_t begin_capture(StreamState& stream, cudaStreamCaptureMode mode);
// With an error the nodes are of no use, but the capture has ended unless the thread is wrong.
cudaError_t end_capture(StreamState& stream, std::shared_ptr<Capture>& ended);
// For the calling thread, whatever the modes of captures say.
void set_unsafe_calls_allowed(bool allowed);
// The stream is destroyed.
void leave_capture(StreamState& stream);

}  // namespace gpu_emulator
