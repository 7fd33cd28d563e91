// Memory of the emulated runtime: given out and taken back, at once or in the order of a stream.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <map>
#include <sstream>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/memory_table.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {
namespace {

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

cudaError_t not_living(const char* call, const void* pointer) {
    std::ostringstream text;
    text << call << ": " << pointer << " is not the start of living device memory";
    report(text.str());
    return cudaErrorInvalidValue;
}

cudaError_t allocate_now(void** pointer, std::size_t bytes) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    *pointer = nullptr;
    const cudaError_t error = check_unsafe_call();
    if (error != cudaSuccess) return error;
    count_host_wait("cudaMalloc");
    if (bytes == 0) return cudaSuccess;
    DeviceAccount& account = account_of(current_device());
    if (!account.make_room(bytes)) return cudaErrorMemoryAllocation;
    const std::uint64_t address = allocate(bytes);
    account.allocated += bytes;
    memory_table().device[address] = {bytes, current_device(), MemoryKind::kPlain};
    *pointer = reinterpret_cast<void*>(address);
    return cudaSuccess;
}

cudaError_t free_now(void* pointer) {
    if (pointer == nullptr) return cudaSuccess;
    const cudaError_t error = check_unsafe_call();
    if (error != cudaSuccess) return error;
    const auto found = memory_table().device.find(address_of(pointer));
    if (found == memory_table().device.end()) return not_living("cudaFree", pointer);
    count_host_wait("cudaFree");
    const DeviceBlock block = found->second;
    wait_for_device(block.device);
    release(found->first);
    memory_table().device.erase(found);
    DeviceAccount& account = account_of(block.device);
    if (block.kind == MemoryKind::kPlain) account.allocated -= block.bytes;
    if (block.kind == MemoryKind::kPool) account.pool_used -= block.bytes;
    return cudaSuccess;
}

cudaError_t allocate_in_stream(void** pointer, std::size_t bytes, StreamState& stream) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    const bool captured = stream.capture != nullptr;
    DeviceAccount& account = account_of(stream.device);
    if (!captured && !account.take_from_pool(bytes, &stream)) return cudaErrorMemoryAllocation;
    const std::uint64_t address = reserve(bytes);
    Task task;
    task.what = "cudaMallocAsync";
    task.bookkeeping = true;
    task.allocates = address;
    task.bytes = bytes;
    task.work = [address, bytes] {
        return [address, bytes] {
            if (!commit(address, bytes)) set_kernel_failed();
            return true;
        };
    };
    const cudaError_t error = submit(stream, std::move(task));
    if (error != cudaSuccess) {
        if (!captured) account.give_to_pool(bytes, &stream)();
        return error;
    }
    memory_table().device[address] = {bytes, stream.device,
                                      captured ? MemoryKind::kCaptured : MemoryKind::kPool};
    *pointer = reinterpret_cast<void*>(address);
    return cudaSuccess;
}

cudaError_t free_in_stream(void* pointer, StreamState& stream) {
    if (pointer == nullptr) return cudaSuccess;
    const auto found = memory_table().device.find(address_of(pointer));
    if (found == memory_table().device.end()) return not_living("cudaFreeAsync", pointer);
    const DeviceBlock block = found->second;
    const std::uint64_t address = found->first;
    const bool captured = stream.capture != nullptr;
    if (captured != (block.kind == MemoryKind::kCaptured)) {
        if (captured) invalidate(*stream.capture);
        report(captured
                   ? "cudaFreeAsync: memory from outside of the graph is freed in a capture"
                   : "cudaFreeAsync: memory of a graph is freed before the graph was launched");
        return cudaErrorInvalidValue;
    }
    const std::function<void()> settle =
        block.kind == MemoryKind::kPool
            ? account_of(block.device).give_to_pool(block.bytes, &stream)
            : [] {};
    Task task;
    task.what = "cudaFreeAsync";
    task.bookkeeping = true;
    task.frees = address;
    task.work = [address, settle] {
        return [address, settle] {
            memory_table().freed.erase(address);
            release(address);
            settle();
            return true;
        };
    };
    if (block.kind == MemoryKind::kPlain) account_of(block.device).allocated -= block.bytes;
    memory_table().device.erase(found);
    if (!captured) memory_table().freed[address] = block.bytes;
    return submit(stream, std::move(task));
}

}  // namespace
}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    return api_call([&] { return allocate_now(pointer, bytes); });
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t handle) {
    return api_call([&] {
        StreamState* const stream = find_stream(handle);
        return stream == nullptr ? cudaErrorInvalidResourceHandle
                                 : allocate_in_stream(pointer, bytes, *stream);
    });
}

cudaError_t cudaFree(void* pointer) {
    return api_call([&] { return free_now(pointer); });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
    return api_call([&] {
        StreamState* const stream = find_stream(handle);
        return stream == nullptr ? cudaErrorInvalidResourceHandle
                                 : free_in_stream(pointer, *stream);
    });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    return api_call([&]() -> cudaError_t {
        if (pointer == nullptr) return cudaErrorInvalidValue;
        const cudaError_t error = check_unsafe_call();
        if (error != cudaSuccess) return error;
        count_host_wait("cudaHostAlloc");
        *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        if (*pointer == nullptr) return cudaErrorMemoryAllocation;
        memory_table().pinned[address_of(*pointer)] = bytes;
        return cudaSuccess;
    });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
    return api_call([&]() -> cudaError_t {
        if (pointer == nullptr) return cudaSuccess;
        const cudaError_t error = check_unsafe_call();
        if (error != cudaSuccess) return error;
        if (memory_table().pinned.count(address_of(pointer)) == 0) {
            report("cudaFreeHost: not the start of living pinned memory");
            return cudaErrorInvalidValue;
        }
        count_host_wait("cudaFreeHost");
        for (int device = 0; device < device_count(); ++device) wait_for_device(device);
        memory_table().pinned.erase(address_of(pointer));
        std::free(pointer);
        return cudaSuccess;
    });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    return api_call([&] {
        *free_bytes = account_of(current_device()).free_bytes();
        *total_bytes = DeviceAccount::total();
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    return api_call([&] {
        *attributes = {};
        attributes->device = -2;
        const std::uint64_t address = address_of(pointer);
        if (is_living_for_host(address, 1)) {
            attributes->type = cudaMemoryTypeDevice;
            attributes->device = device_of(address);
            attributes->devicePointer = const_cast<void*>(pointer);
            return cudaSuccess;
        }
        attributes->hostPointer = const_cast<void*>(pointer);
        if (is_pinned(pointer)) {
            attributes->type = cudaMemoryTypeHost;
            attributes->device = 0;
        }
        return cudaSuccess;
    });
}

}  // extern "C"
