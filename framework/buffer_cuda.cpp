#include <cstdint>
#include <limits>

#include "framework/cuda.h"
#include "framework/device_cuda.h"
#include "framework/error.h"
#include "framework/memory_scope.h"
#include "framework/stream.h"

namespace evenkeel::cuda {
namespace {

constexpr const char* kOp = "Buffer";

cudaMemPool_t default_pool() {
    int device = 0;
    cudaMemPool_t pool = nullptr;
    check(cudaGetDevice(&device), kOp, "cudaGetDevice");
    check(cudaDeviceGetDefaultMemPool(&pool, device), kOp, "cudaDeviceGetDefaultMemPool");
    return pool;
}

// By default the pool gives memory back to the system whenever a stream is waited for; training
// needs it again in the next step.
void keep_freed_memory() {
    std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
    check(cudaMemPoolSetAttribute(default_pool(), cudaMemPoolAttrReleaseThreshold, &everything),
          kOp, "cudaMemPoolSetAttribute");
}

[[noreturn]] void throw_out_of_gpu_memory(std::size_t bytes) {
    std::size_t free_bytes = 0, total_bytes = 0;
    cudaGetLastError();
    memory_info(free_bytes, total_bytes);
    throw_out_of_memory(ErrorCode::kCuda, "out of GPU memory", bytes,
                        Buffer::live_bytes(Device::kCuda),
                        concat("; ", free_bytes, " of ", total_bytes, " bytes are free"));
}

thread_local CaptureMemoryScope* capture_memory = nullptr;

}  // namespace

void memory_info(std::size_t& free_bytes, std::size_t& total_bytes) {
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "memory_of", "cudaMemGetInfo");
}

CaptureMemoryScope::CaptureMemoryScope() { capture_memory = this; }

CaptureMemoryScope::~CaptureMemoryScope() {
    capture_memory = nullptr;
    for (const Allocation& allocation : later_) release(allocation);
}

Allocation allocate(std::size_t bytes) {
    if (bytes == 0) return {};
    static const bool keeps = (keep_freed_memory(), true);
    static_cast<void>(keeps);
    Allocation result{nullptr, Stream::current().shared_handle()};
    void* data = nullptr;
    const cudaError_t error = cudaMallocAsync(&data, bytes, result.stream.get());
    if (error == cudaErrorMemoryAllocation) throw_out_of_gpu_memory(bytes);
    check(error, "Buffer", "cudaMallocAsync");
    result.data = static_cast<std::byte*>(data);
    if (capture_memory != nullptr) capture_memory->own_.insert(data);
    return result;
}

void release(const Allocation& allocation) noexcept {
    if (capture_memory != nullptr && capture_memory->own_.erase(allocation.data) == 0) {
        capture_memory->later_.push_back(allocation);
        return;
    }
    // An error has no one to be told to here: at the end of a process the runtime may be gone
    // already, and one of earlier work is reported by the next call. Nor is it to be found by the next launch.
    if (cudaFreeAsync(allocation.data, allocation.stream.get()) != cudaSuccess) cudaGetLastError();
}

void release_unused() {
    // Only what is free already: buffers are freed in the order of their stream.
    Stream::current().synchronize();
    check(cudaMemPoolTrimTo(default_pool(), 0), kOp, "cudaMemPoolTrimTo");
    // What graphs took has a pool of its own; those that are launched again map it anew.
    int device = 0;
    check(cudaGetDevice(&device), kOp, "cudaGetDevice");
    check(cudaDeviceGraphMemTrim(device), kOp, "cudaDeviceGraphMemTrim");
}

}  // namespace evenkeel::cuda
