// What nvcc's host code calls: registration before main(), launches by <<<>>>, and the launches of
// the runtime.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/device_code.h"
#include "tests/gpu_emulator/kernel_code.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {
namespace {

struct CallConfiguration {
    dim3 grid, block;
    std::size_t shared_bytes = 0;
    cudaStream_t stream = nullptr;
};

// <<<>>> pushes what the kernel's stub function pops; its arguments may launch too.
thread_local std::vector<CallConfiguration> call_configurations;

CodeUnit& unit_of(void** handle) { return *reinterpret_cast<CodeUnit*>(handle); }

cudaError_t check_shape(const Kernel& kernel, const CallConfiguration& call) {
    const Function& function = *kernel.function;
    const dim3& grid = call.grid;
    const dim3& block = call.block;
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) {
        return cudaErrorInvalidConfiguration;
    }
    if (grid.x > 0x7fffffffU || grid.y > 65535 || grid.z > 65535) {
        return cudaErrorInvalidConfiguration;
    }
    if (threads > kMaxThreadsPerBlock || block.z > 64) return cudaErrorInvalidConfiguration;
    if (function.max_threads != 0 && threads > function.max_threads) return cudaErrorInvalidValue;
    const std::vector<std::uint32_t>& required = function.required_block;
    if (!required.empty() &&
        (block.x != required[0] || block.y != required[1] || block.z != required[2])) {
        return cudaErrorInvalidValue;
    }
    if (call.shared_bytes > dynamic_shared_limit(kernel)) return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t launch(Kernel* kernel, const CallConfiguration& call, void** arguments) {
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    StreamState* const stream = find_stream(call.stream);
    if (stream == nullptr || stream->device != current_device()) {
        return cudaErrorInvalidResourceHandle;
    }
    cudaError_t error = load_kernel(*kernel);
    if (error == cudaSuccess) error = check_shape(*kernel, call);
    if (error != cudaSuccess) return error;
    const Function& function = *kernel->function;
    if (!function.parameters.empty() && arguments == nullptr) return cudaErrorInvalidValue;
    const auto launch = std::make_shared<Launch>();
    launch->grid = {call.grid.x, call.grid.y, call.grid.z};
    launch->block = {call.block.x, call.block.y, call.block.z};
    launch->dynamic_shared_bytes = call.shared_bytes;
    launch->parameters.resize(function.parameter_bytes);
    for (std::size_t i = 0; i < function.parameters.size(); ++i) {
        const Variable& parameter = function.parameters[i];
        std::memcpy(launch->parameters.data() + parameter.offset, arguments[i], parameter.bytes);
    }
    Task task;
    task.what = "kernel " + short_name(kernel->name);
    task.work = [kernel, launch] {
        return [kernel, launch] {
            const CodeUnit& unit = *kernel->unit;
            // As on a GPU, what happens in the kernel shows at a later call.
            if (!run(unit.module(), *kernel->function, *launch, unit.module_wide())) {
                set_kernel_failed();
            }
            return true;
        };
    };
    return submit(*stream, std::move(task));
}

}  // namespace
}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
    const ApiLock lock;
    std::vector<FatbinEntry> entries;
    try {
        entries = fatbin_entries(wrapper);
    } catch (const std::exception& error) {
        report(std::string("cannot read the program's device code: ") + error.what());
    }
    program().units.push_back(std::make_unique<CodeUnit>(std::move(entries)));
    return reinterpret_cast<void**>(program().units.back().get());
}

void __cudaRegisterFatBinaryEnd(void**) {}

// Called when the program ends, and its memory with it.
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void** handle,
                            const char* host_function,
                            char*,
                            const char* name,
                            int,
                            uint3*,
                            uint3*,
                            dim3*,
                            dim3*,
                            int*) {
    const ApiLock lock;
    program().kernels[host_function] = unit_of(handle).kernel(name);
}

void __cudaRegisterVar(
    void** handle, char* host_variable, char*, const char* name, int, size_t, int, int) {
    const ApiLock lock;
    program().symbols[host_variable] = {&unit_of(handle), name};
}

// Called for programs with managed memory, of which there is none.
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid,
                                     dim3 block,
                                     size_t shared_bytes,
                                     CUstream_st* stream) {
    call_configurations.push_back({grid, block, shared_bytes, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid,
                                       dim3* block,
                                       size_t* shared_bytes,
                                       void* stream) {
    if (call_configurations.empty()) return remember(cudaErrorMissingConfiguration);
    const CallConfiguration call = call_configurations.back();
    call_configurations.pop_back();
    *grid = call.grid;
    *block = call.block;
    *shared_bytes = call.shared_bytes;
    *static_cast<cudaStream_t*>(stream) = call.stream;
    return cudaSuccess;
}

// Does not need a device: stubs call it in the initialiser of a static variable.
cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* host_function) {
    const ApiLock lock;
    Kernel* const kernel = find_kernel(host_function);
    *handle = reinterpret_cast<cudaKernel_t>(kernel);
    return kernel == nullptr ? remember(cudaErrorInvalidDeviceFunction) : cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function,
                             dim3 grid,
                             dim3 block,
                             void** arguments,
                             size_t shared_bytes,
                             cudaStream_t stream) {
    return api_call([&] {
        return launch(find_kernel(function), {grid, block, shared_bytes, stream}, arguments);
    });
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel,
                               dim3 grid,
                               dim3 block,
                               void** arguments,
                               size_t shared_bytes,
                               cudaStream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                const void* function,
                                void** arguments) {
    return api_call([&]() -> cudaError_t {
        if (config == nullptr) return cudaErrorInvalidValue;
        // Clusters, programmatic launches and the like change what a kernel may do.
        if (config->numAttrs != 0) {
            report("cudaLaunchKernelExC: launch attributes are not emulated");
            return cudaErrorNotSupported;
        }
        return launch(find_kernel(function),
                      {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream},
                      arguments);
    });
}

}  // extern "C"
