#include "tests/gpu_emulator/queue.h"

#include <utility>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {

cudaError_t enqueue(cudaStream_t stream, std::string what, Work work) {
    return api_call([&]() -> cudaError_t {
        StreamState* const state = find_stream(stream);
        if (state == nullptr) return cudaErrorInvalidResourceHandle;
        Task task;
        task.what = std::move(what);
        task.work = std::move(work);
        task.foreign = true;
        return submit(*state, std::move(task));
    });
}

}  // namespace gpu_emulator
