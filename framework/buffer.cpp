#include "framework/buffer.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "framework/device_cuda.h"
#include "framework/large_blocks.h"
#include "framework/memory_scope.h"

namespace evenkeel {
namespace {

constexpr std::size_t kAlignment = 64;

struct Count {
    std::atomic<std::size_t> live{0}, peak{0};

    void add(std::size_t bytes) {
        const std::size_t now = live.fetch_add(bytes) + bytes;
        std::size_t most = peak.load();
        while (most < now && !peak.compare_exchange_weak(most, now)) {
        }
    }
};

Count& count_of(Device device) {
    static Count cpu, cuda;
    return device == Device::kCpu ? cpu : cuda;
}

void* take_on_cpu(std::size_t bytes) {
    if (bytes >= LargeBlocks::kSmallest) return large_blocks().take(bytes);
    return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

std::byte* allocate_on_cpu(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    void* data = take_on_cpu(bytes);
    if (data == nullptr) {
        throw_out_of_memory(ErrorCode::kInternal, "out of memory", bytes,
                            Buffer::live_bytes(Device::kCpu), "");
    }
    return static_cast<std::byte*>(data);
}

}  // namespace

Buffer::Buffer(std::size_t bytes, Device device) : bytes_(bytes), device_(device) {
    switch (device) {
        case Device::kCpu:
            data_ = allocate_on_cpu(bytes);
            break;
        case Device::kCuda: {
            cuda::Allocation allocation = cuda::allocate(bytes);
            data_ = allocation.data;
            stream_ = std::move(allocation.stream);
            break;
        }
    }
    count_of(device).add(bytes);
}

Buffer::~Buffer() {
    if (data_ == nullptr) return;
    count_of(device_).live.fetch_sub(bytes_);
    switch (device_) {
        case Device::kCpu:
            if (bytes_ >= LargeBlocks::kSmallest) {
                large_blocks().give(data_);
            } else {
                std::free(data_);
            }
            break;
        case Device::kCuda:
            cuda::release({data_, stream_});
            break;
    }
}

std::size_t Buffer::live_bytes(Device device) { return count_of(device).live.load(); }
std::size_t Buffer::peak_bytes(Device device) { return count_of(device).peak.load(); }
void Buffer::release_unused(Device device) {
    if (device == Device::kCuda) return cuda::release_unused();
    large_blocks().release_unused();
}
void Buffer::reset_peak(Device device) {
    Count& count = count_of(device);
    count.peak.store(count.live.load());
}

}  // namespace evenkeel
