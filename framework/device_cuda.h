// What the plain sources of this folder ask of CUDA: implemented with it by the *_cuda sources, and
// by no_cuda.cpp in a build without it. Internal.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "framework/tensor.h"

struct CUstream_st;

namespace evenkeel::cuda {

int device_count();
std::string why_not();
GpuDescription describe();

struct Allocation {
    std::byte* data = nullptr;
    std::shared_ptr<CUstream_st>
        stream;  // where it was given out and is taken back; null: the default stream
};
// On the current stream. No bytes are no memory.
Allocation allocate(std::size_t bytes);
void release(const Allocation& allocation) noexcept;

// Of CUDA tensors.
void fill(const Tensor& tensor, float value);
// Same shape; at least one of the two on CUDA. Element types as Tensor::copy_from has checked them.
void copy(const Tensor& to, const Tensor& from);

}  // namespace evenkeel::cuda
