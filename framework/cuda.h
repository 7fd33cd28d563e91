// What the CUDA sources share: checked calls and launches. Internal to .cu and *_cuda.cpp files;
// public headers include no cuda_runtime.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace evenkeel::cuda {

// Throws kCuda "[op] call: what went wrong" unless the call succeeded; kCuda with why_no_cuda()'s
// sentence where there is no usable GPU at all.
void check(cudaError_t error, const char* op, const char* call);

struct LaunchShape {
    dim3 grid, block;
    // Dynamic shared memory. Beyond 48 KiB in all launch_raw raises the kernel's own limit first.
    std::size_t shared_bytes = 0;
};

// Blocks of a grid, counted in 64 bits: throws kInvalidArgument beyond what CUDA can launch.
dim3 grid_size(const char* op, std::int64_t x, std::int64_t y = 1, std::int64_t z = 1);

// Type-erased; arguments point to one value per kernel parameter.
void launch_raw(const char* op, const void* kernel, const LaunchShape& shape, void** arguments);

// Launches on the current stream and checks the launch. An empty grid is no work. The arguments
// must be of the kernel's parameter types after ordinary conversion.
template <typename... Parameters>
void launch(const char* op,
            void (*kernel)(Parameters...),
            const LaunchShape& shape,
            std::type_identity_t<Parameters>... arguments) {
    void* pointers[sizeof...(Parameters) + 1] = {
        const_cast<void*>(static_cast<const void*>(&arguments))...};
    launch_raw(op, reinterpret_cast<const void*>(kernel), shape, pointers);
}

}  // namespace evenkeel::cuda
