// Attributes of kernels, occupancy, variables by name, and code that is loaded as PTX text.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/device_code.h"
#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {

std::size_t dynamic_shared_limit(const Kernel& kernel) {
    const std::size_t used = kernel.function->static_shared_bytes;
    const std::size_t usual = used < kSharedPerBlock ? kSharedPerBlock - used : 0;
    return std::max(usual, kernel.max_dynamic_shared);
}

namespace {

// Finds and loads the kernel before the body sees it.
template <typename Body>
cudaError_t kernel_call(const void* function, Body body) {
    return api_call([&]() -> cudaError_t {
        Kernel* const kernel = find_kernel(function);
        if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
        const cudaError_t error = load_kernel(*kernel);
        return error == cudaSuccess ? body(*kernel) : error;
    });
}

// Finds the part of a variable that a copy means.
template <typename Body>
cudaError_t symbol_call(const void* symbol, std::size_t bytes, std::size_t offset, Body body) {
    return api_call([&]() -> cudaError_t {
        const auto found = program().symbols.find(symbol);
        if (found == program().symbols.end()) return cudaErrorInvalidSymbol;
        const cudaError_t error = found->second.unit->load();
        if (error != cudaSuccess) return error;
        const auto variable = found->second.unit->find_variable(found->second.name);
        if (!variable) return cudaErrorInvalidSymbol;
        if (offset > variable->second || bytes > variable->second - offset) {
            report("a copy of " + std::to_string(bytes) + " bytes at offset " +
                   std::to_string(offset) + " of the variable " + found->second.name +
                   ", which has " + std::to_string(variable->second));
            return cudaErrorInvalidValue;
        }
        return body(variable->first + offset, variable->second);
    });
}

CodeUnit* unit_of(cudaLibrary_t library) {
    for (const auto& unit : program().units) {
        if (unit.get() == reinterpret_cast<CodeUnit*>(library)) return unit.get();
    }
    return nullptr;
}

}  // namespace
}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    return kernel_call(function, [&](Kernel& kernel) -> cudaError_t {
        switch (attribute) {
            case cudaFuncAttributeMaxDynamicSharedMemorySize:
                if (value < 0 ||
                    value + kernel.function->static_shared_bytes > kSharedPerBlockOptin) {
                    return cudaErrorInvalidValue;
                }
                kernel.max_dynamic_shared = static_cast<std::size_t>(value);
                return cudaSuccess;
            case cudaFuncAttributePreferredSharedMemoryCarveout:
                return value < -1 || value > 100 ? cudaErrorInvalidValue : cudaSuccess;
            default:
                report("cudaFuncSetAttribute: the attribute is not emulated");
                return cudaErrorNotSupported;
        }
    });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
    return kernel_call(function, [&](Kernel& kernel) {
        *attributes = {};
        attributes->sharedSizeBytes = kernel.function->static_shared_bytes;
        attributes->localSizeBytes = kernel.function->local_bytes;
        attributes->maxThreadsPerBlock = kernel.function->max_threads == 0
                                             ? kMaxThreadsPerBlock
                                             : static_cast<int>(kernel.function->max_threads);
        attributes->ptxVersion = emulated_arch();
        attributes->binaryVersion = emulated_arch();
        attributes->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_shared_limit(kernel));
        return cudaSuccess;
    });
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
    return kernel_call(function, [&](Kernel& kernel) {
        *name = kernel.name.c_str();
        return cudaSuccess;
    });
}

// Without registers, of which PTX says nothing.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                          const void* function,
                                                          int threads,
                                                          size_t dynamic_bytes) {
    return kernel_call(function, [&](Kernel& kernel) -> cudaError_t {
        if (threads < 1) return cudaErrorInvalidValue;
        const int limit = kernel.function->max_threads == 0
                              ? kMaxThreadsPerBlock
                              : static_cast<int>(kernel.function->max_threads);
        *blocks = 0;
        if (threads > limit || dynamic_bytes > dynamic_shared_limit(kernel)) return cudaSuccess;
        const int warps = (threads + kWarpSize - 1) / kWarpSize;
        const std::size_t shared =
            kernel.function->static_shared_bytes + dynamic_bytes + kReservedSharedPerBlock;
        *blocks =
            std::min({kMaxBlocksPerMultiprocessor, kMaxThreadsPerMultiprocessor / kWarpSize / warps,
                      static_cast<int>(kSharedPerMultiprocessor / shared)});
        return cudaSuccess;
    });
}

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
    return symbol_call(symbol, 0, 0, [&](std::uint64_t at, std::size_t) {
        *address = reinterpret_cast<void*>(at);
        return cudaSuccess;
    });
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
    return symbol_call(symbol, 0, 0, [&](std::uint64_t, std::size_t size) {
        *bytes = size;
        return cudaSuccess;
    });
}

cudaError_t cudaMemcpyToSymbol(
    const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
    return symbol_call(symbol, bytes, offset, [&](std::uint64_t at, std::size_t) {
        return cudaMemcpy(reinterpret_cast<void*>(at), from, bytes, kind);
    });
}

cudaError_t cudaMemcpyFromSymbol(
    void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind) {
    return symbol_call(symbol, bytes, offset, [&](std::uint64_t at, std::size_t) {
        return cudaMemcpy(to, reinterpret_cast<const void*>(at), bytes, kind);
    });
}

// PTX text, or a fat binary. Read and linked at once.
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library,
                                const void* code,
                                cudaJitOption*,
                                void**,
                                unsigned jit_options,
                                cudaLibraryOption*,
                                void**,
                                unsigned library_options) {
    return api_call([&]() -> cudaError_t {
        if (library == nullptr || code == nullptr) return cudaErrorInvalidValue;
        if (jit_options != 0 || library_options != 0) {
            report("cudaLibraryLoadData: options are not emulated");
            return cudaErrorNotSupported;
        }
        std::unique_ptr<CodeUnit> unit;
        try {
            unit = is_fatbin(code) ? std::make_unique<CodeUnit>(fatbin_entries(code))
                                   : std::make_unique<CodeUnit>(static_cast<const char*>(code));
        } catch (const std::exception& error) {
            report(std::string("cudaLibraryLoadData: ") + error.what());
            return cudaErrorInvalidKernelImage;
        }
        const cudaError_t error = unit->load();
        if (error != cudaSuccess) return error;
        *library = reinterpret_cast<cudaLibrary_t>(unit.get());
        program().units.push_back(std::move(unit));
        return cudaSuccess;
    });
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
    return api_call([&]() -> cudaError_t {
        CodeUnit* const unit = unit_of(library);
        if (unit == nullptr) return cudaErrorInvalidResourceHandle;
        if (unit->find_function(name) == nullptr) return cudaErrorSymbolNotFound;
        *kernel = reinterpret_cast<cudaKernel_t>(unit->kernel(name));
        return cudaSuccess;
    });
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
    return api_call([&]() -> cudaError_t {
        CodeUnit* const unit = unit_of(library);
        if (unit == nullptr) return cudaErrorInvalidResourceHandle;
        finish_work();  // kernels of the library may be pending
        std::erase_if(program().units, [&](const auto& other) { return other.get() == unit; });
        return cudaSuccess;
    });
}

}  // extern "C"
