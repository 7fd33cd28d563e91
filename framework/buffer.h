// Owned memory on one device. 64-byte aligned on the CPU, so that a cache line or a 512-bit vector
// never straddles two buffers; 256-byte aligned on CUDA. CUDA memory is stream-ordered: it is given
// out and taken back in the order of the stream that was current when the buffer was made, which
// lives as long as the buffer. Work on other streams must be waited for by that stream
// (Stream::wait) before the buffer goes.
#pragma once

#include <cstddef>
#include <memory>

#include "framework/device.h"

struct CUstream_st;

namespace evenkeel {

class Buffer {
  public:
    // Uninitialised memory. Throws kNotBuilt for a device that this build lacks, kCuda where no GPU
    // can be used or its memory runs out.
    Buffer(std::size_t bytes, Device device);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    Device device() const { return device_; }

    // Bytes held by all living buffers of the device in this process, and their peak since the last
    // reset: what a memory test or a bench line reads.
    static std::size_t live_bytes(Device device);
    static std::size_t peak_bytes(Device device);
    static void reset_peak(Device device);
    // Gives memory that no buffer holds back to the system, on CUDA after work that still uses it.
    static void release_unused(Device device);

  private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    Device device_ = Device::kCpu;
    std::shared_ptr<CUstream_st> stream_;
};

}  // namespace evenkeel
