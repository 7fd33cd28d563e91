#include "tests/gpu_emulator/queue.h"

#include <thread>

#include "tests/gpu_emulator/context.h"

namespace gpu_emulator {

cudaError_t enqueue(cudaStream_t stream, std::string, Work work) {
    return api_call([&]() -> cudaError_t {
        if (!is_stream(stream)) return cudaErrorInvalidResourceHandle;
        const Advance advance = work();
        while (!advance()) std::this_thread::yield();
        return cudaSuccess;
    });
}

}  // namespace gpu_emulator
