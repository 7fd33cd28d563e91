#include "framework/buffer.h"

#include <atomic>
#include <cstdlib>

#include "framework/error.h"

namespace evenkeel {
namespace {

constexpr std::size_t kAlignment = 64;

std::atomic<std::size_t> live_cpu_bytes{0};
std::atomic<std::size_t> peak_cpu_bytes{0};

void count_allocation(std::size_t bytes) {
    const std::size_t live = live_cpu_bytes.fetch_add(bytes) + bytes;
    std::size_t peak = peak_cpu_bytes.load();
    while (peak < live && !peak_cpu_bytes.compare_exchange_weak(peak, live)) {
    }
}

}  // namespace

Buffer::Buffer(std::size_t bytes, Device device) : bytes_(bytes), device_(device) {
    EVENKEEL_CHECK_CODE(device == Device::kCpu, ErrorCode::kNotBuilt, "Buffer",
                        "device: got cuda, want cpu (this build has no CUDA back end)");
    if (bytes == 0) return;
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const bool wrapped = rounded < bytes;
    if (!wrapped) data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    EVENKEEL_CHECK_CODE(data_ != nullptr, ErrorCode::kInternal, "Buffer",
                        "out of memory: no room for ", bytes, " bytes beside the ",
                        live_bytes(device), " already held");
    count_allocation(bytes_);
}

Buffer::~Buffer() {
    if (data_ == nullptr) return;
    live_cpu_bytes.fetch_sub(bytes_);
    std::free(data_);
}

std::size_t Buffer::live_bytes(Device) { return live_cpu_bytes.load(); }
std::size_t Buffer::peak_bytes(Device) { return peak_cpu_bytes.load(); }
void Buffer::reset_peak(Device) { peak_cpu_bytes.store(live_cpu_bytes.load()); }

}  // namespace evenkeel
