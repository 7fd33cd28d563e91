#include "framework/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "framework/error.h"

namespace evenkeel {
namespace {

TEST(BufferTest, IsAlignedToACacheLine) {
    for (std::size_t bytes : {1, 63, 64, 65, 1000}) {
        const Buffer buffer(bytes, Device::kCpu);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
        EXPECT_EQ(buffer.bytes(), bytes);
    }
}

TEST(BufferTest, EmptyBuffersHoldNothing) {
    const std::size_t before = Buffer::live_bytes(Device::kCpu);
    const Buffer buffer(0, Device::kCpu);
    EXPECT_EQ(buffer.data(), nullptr);
    EXPECT_EQ(Buffer::live_bytes(Device::kCpu), before);
}

TEST(BufferTest, CountsLiveAndPeakBytes) {
    const std::size_t before = Buffer::live_bytes(Device::kCpu);
    Buffer::reset_peak(Device::kCpu);
    {
        const Buffer a(1000, Device::kCpu);
        { const Buffer b(500, Device::kCpu); }
        EXPECT_EQ(Buffer::live_bytes(Device::kCpu), before + 1000);
        EXPECT_EQ(Buffer::peak_bytes(Device::kCpu), before + 1500);
        Buffer::reset_peak(Device::kCpu);
        EXPECT_EQ(Buffer::peak_bytes(Device::kCpu), before + 1000);
    }
    EXPECT_EQ(Buffer::live_bytes(Device::kCpu), before);
}

TEST(BufferTest, SaysWhenMemoryRunsOut) {
    const std::size_t before = Buffer::live_bytes(Device::kCpu);
    EXPECT_THROW(Buffer(std::numeric_limits<std::size_t>::max() / 2, Device::kCpu), Error);
    EXPECT_THROW(Buffer(std::numeric_limits<std::size_t>::max(), Device::kCpu), Error);
    EXPECT_EQ(Buffer::live_bytes(Device::kCpu), before);
}

}  // namespace
}  // namespace evenkeel
