#include "framework/memory_scope.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "framework/buffer.h"
#include "framework/device_memory.h"

namespace evenkeel {
namespace {

std::string what_runs_out(std::size_t bytes) {
    try {
        const Buffer buffer(bytes, Device::kCpu);
    } catch (const OutOfMemory& error) {
        return error.what();
    }
    return "";
}

constexpr std::size_t kTooMuch = std::numeric_limits<std::size_t>::max() / 2;

TEST(MemoryScopeTest, TheInnermostNamesWhatHadNoRoom) {
    const std::string name = "layers.3";
    EXPECT_EQ(MemoryScope::current(), "");
    {
        const MemoryScope outer("parameters");
        {
            const MemoryScope inner(name, ".feed_forward (forward)");
            EXPECT_NE(what_runs_out(kTooMuch).find(
                          concat("[Buffer] out of memory: no room for ", kTooMuch,
                                 " bytes for layers.3.feed_forward (forward) beside the ")),
                      std::string::npos)
                << what_runs_out(kTooMuch);
        }
        EXPECT_EQ(MemoryScope::current(), "parameters");
    }
    EXPECT_NE(what_runs_out(kTooMuch).find(concat("for ", kTooMuch, " bytes beside the ")),
              std::string::npos)
        << what_runs_out(kTooMuch);
}

TEST(MemoryScopeTest, IsOfOneThread) {
    const MemoryScope scope("of this thread");
    std::string there = "not asked";
    std::thread([&] { there = MemoryScope::current(); }).join();
    EXPECT_EQ(there, "");
}

TEST(DeviceMemoryTest, OfTheMachineIsTold) {
    const DeviceMemory memory = memory_of(Device::kCpu);
    EXPECT_GT(memory.free, 0u);
    EXPECT_LE(memory.free, memory.total);
}

}  // namespace
}  // namespace evenkeel
