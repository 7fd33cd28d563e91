// What the plain sources of this folder ask of CUDA: implemented with it by the *_cuda sources, and
// by no_cuda.cpp in a build without it. Internal.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "framework/tensor.h"

struct CUstream_st;

namespace evenkeel::cuda {

int device_count();
std::string why_not();
GpuDescription describe();
void use_gpu(int index);

void memory_info(std::size_t& free_bytes, std::size_t& total_bytes);

struct Allocation {
    std::byte* data = nullptr;
    std::shared_ptr<CUstream_st>
        stream;  // where it was given out and is taken back; null: the default stream
};
// On the current stream. No bytes are no memory.
Allocation allocate(std::size_t bytes);
void release(const Allocation& allocation) noexcept;
void release_unused();

// Where a wait guard is set: waits under it until the current stream is idle. For calls that make
// the host wait where no guard can be asked.
void wait_under_guard(const char* op);

// Memory while the calling thread captures a graph (framework/graph.h): what was given out before is
// taken back only at the end of the scope, since a graph can free no memory but its own.
class CaptureMemoryScope {
  public:
    CaptureMemoryScope();
    ~CaptureMemoryScope();
    CaptureMemoryScope(const CaptureMemoryScope&) = delete;
    CaptureMemoryScope& operator=(const CaptureMemoryScope&) = delete;

  private:
    friend Allocation allocate(std::size_t);
    friend void release(const Allocation&) noexcept;
    std::set<const void*> own_;
    std::vector<Allocation> later_;
};

// Of CUDA tensors.
void fill(const Tensor& tensor, float value);
// Same shape; at least one of the two on CUDA. Element types as Tensor::copy_from has checked them.
void copy(const Tensor& to, const Tensor& from);

}  // namespace evenkeel::cuda
