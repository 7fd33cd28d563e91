// Memory of the emulated runtime. Execution is immediate, so the asynchronous functions are the
// others under another name; every copy says by its kind which side is the device, and a pointer of
// the other side is reported.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

// What there is for tests; a GPU's 80 GB would only hide a leak.
constexpr std::size_t kDeviceBytes = std::size_t{8} << 30;

struct MemoryTable {
    std::map<std::uint64_t, std::size_t> device;  // bytes by address
    std::map<const void*, std::size_t> pinned;
    std::size_t device_bytes = 0;
};

MemoryTable& table() {
    // Never destroyed: static destructors of the program still free device memory.
    static auto* const only = new MemoryTable;
    return *only;
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

cudaError_t allocate_device(void** pointer, std::size_t bytes) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes > kDeviceBytes - table().device_bytes) return cudaErrorMemoryAllocation;
    const std::uint64_t address = allocate(bytes);
    table().device[address] = bytes;
    table().device_bytes += bytes;
    *pointer = reinterpret_cast<void*>(address);
    return cudaSuccess;
}

cudaError_t free_device(const char* call, void* pointer) {
    if (pointer == nullptr) return cudaSuccess;
    const auto found = table().device.find(address_of(pointer));
    if (found == table().device.end()) {
        std::ostringstream text;
        text << call << ": " << pointer << " is not the start of living device memory";
        report(text.str());
        return cudaErrorInvalidValue;
    }
    release(found->first);
    table().device_bytes -= found->second;
    table().device.erase(found);
    return cudaSuccess;
}

const char* name_of(cudaMemcpyKind kind) {
    switch (kind) {
        case cudaMemcpyHostToHost:
            return "host to host";
        case cudaMemcpyHostToDevice:
            return "host to device";
        case cudaMemcpyDeviceToHost:
            return "device to host";
        case cudaMemcpyDeviceToDevice:
            return "device to device";
        case cudaMemcpyDefault:
            return "default";
    }
    return "unknown";
}

// False if the pointers are not of the sides that the kind names.
bool resolve_kind(const char* call, const void* to, const void* from, cudaMemcpyKind& kind) {
    const bool to_device = is_device_address(address_of(to));
    const bool from_device = is_device_address(address_of(from));
    const cudaMemcpyKind actual =
        to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                  : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
    if (kind == cudaMemcpyDefault) kind = actual;
    if (kind == actual) return true;
    std::ostringstream text;
    text << call << ": kind is " << name_of(kind) << ", but " << to << " <- " << from << " is "
         << name_of(actual);
    report(text.str());
    return false;
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    bool copied = true;
    switch (kind) {
        case cudaMemcpyHostToDevice:
            copied = copy_to_device(address_of(to), from, bytes);
            break;
        case cudaMemcpyDeviceToHost:
            copied = copy_to_host(to, address_of(from), bytes);
            break;
        case cudaMemcpyDeviceToDevice:
            copied = copy_on_device(address_of(to), address_of(from), bytes);
            break;
        default:
            std::memcpy(to, from, bytes);
    }
    return copied ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t copy_rows(const char* call,
                      void* to,
                      std::size_t to_pitch,
                      const void* from,
                      std::size_t from_pitch,
                      std::size_t bytes,
                      std::size_t rows,
                      cudaMemcpyKind kind,
                      cudaStream_t stream) {
    if (!is_stream(stream)) return cudaErrorInvalidResourceHandle;
    if (bytes == 0 || rows == 0) return cudaSuccess;
    if (rows > 1 && (to_pitch < bytes || from_pitch < bytes)) return cudaErrorInvalidPitchValue;
    if (!resolve_kind(call, to, from, kind)) return cudaErrorInvalidValue;
    for (std::size_t row = 0; row < rows; ++row) {
        const cudaError_t error =
            copy(static_cast<std::byte*>(to) + row * to_pitch,
                 static_cast<const std::byte*>(from) + row * from_pitch, bytes, kind);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t set_rows(void* to,
                     std::size_t pitch,
                     int byte,
                     std::size_t bytes,
                     std::size_t rows,
                     cudaStream_t stream) {
    if (!is_stream(stream)) return cudaErrorInvalidResourceHandle;
    if (rows > 1 && pitch < bytes) return cudaErrorInvalidPitchValue;
    for (std::size_t row = 0; bytes > 0 && row < rows; ++row) {
        if (!set_on_device(address_of(to) + row * pitch, byte, bytes)) return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

}  // namespace
}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    return api_call([&] { return allocate_device(pointer, bytes); });
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
    return api_call([&] {
        return is_stream(stream) ? allocate_device(pointer, bytes) : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaFree(void* pointer) {
    return api_call([&] { return free_device("cudaFree", pointer); });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    return api_call([&] {
        return is_stream(stream) ? free_device("cudaFreeAsync", pointer)
                                 : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    return api_call([&]() -> cudaError_t {
        if (pointer == nullptr) return cudaErrorInvalidValue;
        *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        if (*pointer == nullptr) return cudaErrorMemoryAllocation;
        table().pinned[*pointer] = bytes;
        return cudaSuccess;
    });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
    return api_call([&]() -> cudaError_t {
        if (pointer == nullptr) return cudaSuccess;
        if (table().pinned.erase(pointer) == 0) {
            report("cudaFreeHost: not the start of living pinned memory");
            return cudaErrorInvalidValue;
        }
        std::free(pointer);
        return cudaSuccess;
    });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    return api_call([&] {
        *free_bytes = kDeviceBytes - table().device_bytes;
        *total_bytes = kDeviceBytes;
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    return api_call([&] {
        *attributes = {};
        attributes->device = -2;
        if (is_device_address(address_of(pointer))) {
            attributes->type = cudaMemoryTypeDevice;
            attributes->device = 0;
            attributes->devicePointer = const_cast<void*>(pointer);
            return cudaSuccess;
        }
        auto found = table().pinned.upper_bound(pointer);
        const bool is_pinned = found != table().pinned.begin() &&
                               address_of(pointer) - address_of((--found)->first) < found->second;
        attributes->hostPointer = const_cast<void*>(pointer);
        if (is_pinned) {
            attributes->type = cudaMemoryTypeHost;
            attributes->device = 0;
        }
        return cudaSuccess;
    });
}

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return api_call(
        [&] { return copy_rows("cudaMemcpyAsync", to, 0, from, 0, bytes, 1, kind, stream); });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return api_call(
        [&] { return copy_rows("cudaMemcpy", to, 0, from, 0, bytes, 1, kind, nullptr); });
}

cudaError_t cudaMemcpy2DAsync(void* to,
                              size_t to_pitch,
                              const void* from,
                              size_t from_pitch,
                              size_t bytes,
                              size_t rows,
                              cudaMemcpyKind kind,
                              cudaStream_t stream) {
    return api_call([&] {
        return copy_rows("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, bytes, rows, kind,
                         stream);
    });
}

cudaError_t cudaMemcpy2D(void* to,
                         size_t to_pitch,
                         const void* from,
                         size_t from_pitch,
                         size_t bytes,
                         size_t rows,
                         cudaMemcpyKind kind) {
    return api_call([&] {
        return copy_rows("cudaMemcpy2D", to, to_pitch, from, from_pitch, bytes, rows, kind,
                         nullptr);
    });
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
    return api_call([&] { return set_rows(to, 0, byte, bytes, 1, stream); });
}

cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
    return cudaMemsetAsync(to, byte, bytes, nullptr);
}

cudaError_t cudaMemset2DAsync(
    void* to, size_t pitch, int byte, size_t bytes, size_t rows, cudaStream_t stream) {
    return api_call([&] { return set_rows(to, pitch, byte, bytes, rows, stream); });
}

cudaError_t cudaMemset2D(void* to, size_t pitch, int byte, size_t bytes, size_t rows) {
    return cudaMemset2DAsync(to, pitch, byte, bytes, rows, nullptr);
}

}  // extern "C"
