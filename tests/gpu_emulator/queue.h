// Work of streams: what the emulated runtime and the stand-ins for NVIDIA's libraries put into them.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace gpu_emulator {

// One run of a piece of work. Called when all work before it is done, and again until it returns
// true; false means that it can't go on yet (a collective whose peers have not answered), and other
// streams get their turn before it is asked again. Called with the runtime's lock held: it must not
// wait, and must use the functions of machine.h instead of the CUDA runtime's.
using Advance = std::function<bool()>;

// Makes the state of a fresh run: called once when the work's turn comes, and for each launch of a
// graph that captured it. It owns copies of all parameters.
using Work = std::function<Advance()>;

// Puts work into a stream, or into the graph that the stream is captured into. `what` names it in
// reports. Errors as of a kernel launch. Work that fails calls report() and set_kernel_failed()
// (context.h).
cudaError_t enqueue(cudaStream_t stream, std::string what, Work work);

}  // namespace gpu_emulator
