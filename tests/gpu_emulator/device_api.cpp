// The device itself, versions and errors.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/memory_table.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {
namespace {

// The address of one is the handle of its device's memory pool.
struct Pool {
    int device = 0;
};

Pool* pool_of(int device) {
    static auto* const pools = new std::map<int, Pool>;
    return &pools->try_emplace(device, Pool{device}).first->second;
}

struct ErrorText {
    cudaError_t error;
    const char* name;
    const char* text;
};

// Of the errors that the emulator returns.
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration",
     "__global__ function call is not configured"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidKernelImage, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidPtx, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* find_error(cudaError_t error) {
    for (const ErrorText& entry : kErrors) {
        if (entry.error == error) return &entry;
    }
    return nullptr;
}

cudaError_t attribute_of_device(int* value, cudaDeviceAttr attribute) {
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock:
            *value = kMaxThreadsPerBlock;
            break;
        case cudaDevAttrMaxBlockDimX:
        case cudaDevAttrMaxBlockDimY:
            *value = 1024;
            break;
        case cudaDevAttrMaxBlockDimZ:
            *value = 64;
            break;
        case cudaDevAttrMaxGridDimX:
            *value = 0x7fffffff;
            break;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ:
            *value = 65535;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            *value = kSharedPerBlock;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = kSharedPerBlockOptin;
            break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *value = kSharedPerMultiprocessor;
            break;
        case cudaDevAttrReservedSharedMemoryPerBlock:
            *value = kReservedSharedPerBlock;
            break;
        case cudaDevAttrMaxRegistersPerBlock:
        case cudaDevAttrMaxRegistersPerMultiprocessor:
            *value = kRegistersPerMultiprocessor;
            break;
        case cudaDevAttrWarpSize:
            *value = kWarpSize;
            break;
        case cudaDevAttrMultiProcessorCount:
            *value = kMultiprocessors;
            break;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            *value = kMaxThreadsPerMultiprocessor;
            break;
        case cudaDevAttrMaxBlocksPerMultiprocessor:
            *value = kMaxBlocksPerMultiprocessor;
            break;
        case cudaDevAttrComputeCapabilityMajor:
            *value = emulated_arch() / 10;
            break;
        case cudaDevAttrComputeCapabilityMinor:
            *value = emulated_arch() % 10;
            break;
        case cudaDevAttrClockRate:
            *value = 1410000;
            break;  // kHz
        case cudaDevAttrMemoryClockRate:
            *value = 1215000;
            break;  // kHz
        case cudaDevAttrGlobalMemoryBusWidth:
            *value = 5120;
            break;
        case cudaDevAttrL2CacheSize:
            *value = 40 << 20;
            break;
        case cudaDevAttrTotalConstantMemory:
            *value = 64 << 10;
            break;
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrMemoryPoolsSupported:
        case cudaDevAttrConcurrentKernels:
            *value = 1;
            break;
        case cudaDevAttrCooperativeLaunch:
        case cudaDevAttrManagedMemory:
        case cudaDevAttrConcurrentManagedAccess:
        case cudaDevAttrPageableMemoryAccess:
        case cudaDevAttrIntegrated:
            *value = 0;
            break;
        default:
            report("cudaDeviceGetAttribute: attribute " +
                   std::to_string(static_cast<int>(attribute)) + " is not emulated");
            return cudaErrorNotSupported;
    }
    return cudaSuccess;
}

cudaDeviceProp properties(int device) {
    cudaDeviceProp all = {};
    std::strncpy(all.name, "Emulated GPU", sizeof all.name - 1);
    all.major = emulated_arch() / 10;
    all.minor = emulated_arch() % 10;
    all.warpSize = kWarpSize;
    all.multiProcessorCount = kMultiprocessors;
    all.maxThreadsPerBlock = kMaxThreadsPerBlock;
    all.maxThreadsPerMultiProcessor = kMaxThreadsPerMultiprocessor;
    all.maxBlocksPerMultiProcessor = kMaxBlocksPerMultiprocessor;
    all.maxThreadsDim[0] = all.maxThreadsDim[1] = 1024;
    all.maxThreadsDim[2] = 64;
    all.maxGridSize[0] = 0x7fffffff;
    all.maxGridSize[1] = all.maxGridSize[2] = 65535;
    all.sharedMemPerBlock = kSharedPerBlock;
    all.sharedMemPerBlockOptin = kSharedPerBlockOptin;
    all.sharedMemPerMultiprocessor = kSharedPerMultiprocessor;
    all.reservedSharedMemPerBlock = kReservedSharedPerBlock;
    all.regsPerBlock = all.regsPerMultiprocessor = kRegistersPerMultiprocessor;
    all.totalConstMem = 64 << 10;
    all.l2CacheSize = 40 << 20;
    all.memoryBusWidth = 5120;
    all.unifiedAddressing = all.memoryPoolsSupported = all.concurrentKernels = 1;
    all.totalGlobalMem = DeviceAccount::total();
    std::memcpy(all.uuid.bytes, "Emulated GPU", 12);
    all.uuid.bytes[15] = static_cast<char>(device);
    all.pciBusID = device + 1;
    return all;
}

template <typename Body>
cudaError_t device_call(int device, Body body) {
    return api_call([&]() -> cudaError_t {
        return device >= 0 && device < device_count() ? body() : cudaErrorInvalidDevice;
    });
}

template <typename Body>
cudaError_t pool_call(cudaMemPool_t pool, Body body) {
    return api_call([&]() -> cudaError_t {
        for (int device = 0; device < device_count(); ++device) {
            if (reinterpret_cast<Pool*>(pool) == pool_of(device)) return body(account_of(device));
        }
        return cudaErrorInvalidValue;
    });
}

}  // namespace
}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 0;
    return api_call([&] {
        *count = device_count();
        return cudaSuccess;
    });
}

cudaError_t cudaGetDevice(int* device) {
    return api_call([&] {
        *device = current_device();
        return cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device) {
    return device_call(device, [&] {
        set_current_device(device);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
    return device_call(device, [&]() -> cudaError_t {
        const int needed = std::snprintf(text, static_cast<std::size_t>(std::max(length, 0)),
                                         "0000:%02x:00.0", device + 1);
        return needed < length ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaDeviceSynchronize() {
    return api_call([]() -> cudaError_t {
        const cudaError_t error = check_asked(legacy_stream(current_device()));
        if (error != cudaSuccess) return error;
        count_host_wait("cudaDeviceSynchronize");
        wait_for_device(current_device());
        trim_pools();
        return context_error();
    });
}

// Makes a device usable again whose kernel failed. Memory, streams and events stay.
cudaError_t cudaDeviceReset() {
    const ApiLock lock;
    clear_kernel_failed();
    forget_last_error();
    return api_call([] { return cudaSuccess; });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    return device_call(device, [&] { return attribute_of_device(value, attribute); });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* all, int device) {
    return device_call(device, [&] {
        *all = properties(device);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    return device_call(device, [&] {
        *pool = reinterpret_cast<cudaMemPool_t>(pool_of(device));
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
    return cudaDeviceGetDefaultMemPool(pool, device);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
    return pool_call(pool, [&](DeviceAccount& account) -> cudaError_t {
        if (value == nullptr) return cudaErrorInvalidValue;
        const std::uint64_t number = *static_cast<std::uint64_t*>(value);
        switch (attribute) {
            case cudaMemPoolAttrReleaseThreshold:
                account.threshold = number;
                return cudaSuccess;
            case cudaMemPoolAttrReservedMemHigh:
                account.pool_reserved_high = account.pool_reserved;
                return number == 0 ? cudaSuccess : cudaErrorInvalidValue;
            case cudaMemPoolAttrUsedMemHigh:
                account.pool_used_high = account.pool_used;
                return number == 0 ? cudaSuccess : cudaErrorInvalidValue;
            default:
                report("cudaMemPoolSetAttribute: the attribute is not emulated");
                return cudaErrorNotSupported;
        }
    });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
    return pool_call(pool, [&](DeviceAccount& account) -> cudaError_t {
        if (value == nullptr) return cudaErrorInvalidValue;
        std::uint64_t& number = *static_cast<std::uint64_t*>(value);
        switch (attribute) {
            case cudaMemPoolAttrReleaseThreshold:
                number = account.threshold;
                return cudaSuccess;
            case cudaMemPoolAttrReservedMemCurrent:
                number = account.pool_reserved;
                return cudaSuccess;
            case cudaMemPoolAttrReservedMemHigh:
                number = account.pool_reserved_high;
                return cudaSuccess;
            case cudaMemPoolAttrUsedMemCurrent:
                number = account.pool_used;
                return cudaSuccess;
            case cudaMemPoolAttrUsedMemHigh:
                number = account.pool_used_high;
                return cudaSuccess;
            default:
                report("cudaMemPoolGetAttribute: the attribute is not emulated");
                return cudaErrorNotSupported;
        }
    });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
    return pool_call(pool, [&](DeviceAccount& account) {
        account.trim(keep);
        return cudaSuccess;
    });
}

// Graphs give back what they took when they are destroyed.
cudaError_t cudaDeviceGraphMemTrim(int device) {
    return device_call(device, [] { return cudaSuccess; });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    const ApiLock lock;
    *version = context_error() == cudaErrorInsufficientDriver ? 11000 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError() {
    const ApiLock lock;
    const cudaError_t error = context_error();
    return error == cudaErrorLaunchFailure ? error : last_error();
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = cudaPeekAtLastError();
    forget_last_error();
    return error;
}

const char* cudaGetErrorName(cudaError_t error) {
    const ErrorText* const entry = find_error(error);
    return entry == nullptr ? "unrecognized error code" : entry->name;
}

const char* cudaGetErrorString(cudaError_t error) {
    const ErrorText* const entry = find_error(error);
    return entry == nullptr ? "unrecognized error code" : entry->text;
}

}  // extern "C"
