// The device itself, versions and errors.
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

int pool_handle;  // the address is the handle of the device's memory pool

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

cudaDeviceProp properties() {
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
    std::size_t free_bytes = 0;
    cudaMemGetInfo(&free_bytes, &all.totalGlobalMem);
    return all;
}

template <typename Body>
cudaError_t device_call(int device, Body body) {
    return api_call([&]() -> cudaError_t { return device == 0 ? body() : cudaErrorInvalidDevice; });
}

template <typename Body>
cudaError_t pool_call(cudaMemPool_t pool, Body body) {
    return api_call([&]() -> cudaError_t {
        return static_cast<void*>(pool) == &pool_handle ? body() : cudaErrorInvalidValue;
    });
}

}  // namespace
}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 0;
    return api_call([&] {
        *count = 1;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDevice(int* device) {
    return api_call([&] {
        *device = 0;
        return cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device) {
    return device_call(device, [] { return cudaSuccess; });
}

cudaError_t cudaDeviceSynchronize() {
    return api_call([] { return cudaSuccess; });
}

// Makes a device usable again whose kernel failed. Memory, streams and events stay.
cudaError_t cudaDeviceReset() {
    const std::lock_guard lock(api_mutex());
    clear_kernel_failed();
    forget_last_error();
    return api_call([] { return cudaSuccess; });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    return device_call(device, [&] { return attribute_of_device(value, attribute); });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* all, int device) {
    return device_call(device, [&] {
        *all = properties();
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    return device_call(device, [&] {
        *pool = reinterpret_cast<cudaMemPool_t>(&pool_handle);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
    return cudaDeviceGetDefaultMemPool(pool, device);
}

// How long a pool keeps freed memory changes nothing here.
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void* value) {
    return pool_call(pool, [&] { return value == nullptr ? cudaErrorInvalidValue : cudaSuccess; });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
    return pool_call(pool, [] { return cudaSuccess; });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    const std::lock_guard lock(api_mutex());
    *version = context_error() == cudaErrorInsufficientDriver ? 11000 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError() {
    const std::lock_guard lock(api_mutex());
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
