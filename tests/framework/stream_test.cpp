#include "framework/stream.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "framework/tensor.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::same_bits;

TEST(StreamTest, TheDefaultStreamIsCurrentUntilAScopeSaysOtherwise) {
    EXPECT_EQ(Stream::current().handle(), nullptr);
    const Stream outer, inner;
    EXPECT_NE(outer.handle(), nullptr);
    EXPECT_NE(outer.handle(), inner.handle());
    {
        const StreamScope first(outer);
        EXPECT_EQ(&Stream::current(), &outer);
        {
            const StreamScope second(inner);
            EXPECT_EQ(&Stream::current(), &inner);
            std::thread([] { EXPECT_EQ(Stream::current().handle(), nullptr); }).join();
        }
        EXPECT_EQ(&Stream::current(), &outer);
    }
    EXPECT_EQ(Stream::current().handle(), nullptr);
}

TEST(StreamTest, AScopeEndsWithAnException) {
    const Stream stream;
    try {
        const StreamScope scope(stream);
        throw_error(ErrorCode::kInternal, "test", "leaving");
    } catch (const Error&) {
    }
    EXPECT_EQ(Stream::current().handle(), nullptr);
}

TEST(StreamTest, WorkOfOneStreamIsSeenByAnotherAfterAnEvent) {
    const Tensor data = gaussian({1000, 130}, DType::kFloat32, 1);
    const Stream first, second;
    Event made;
    Tensor a;
    {
        const StreamScope scope(first);
        a = data.to(Device::kCuda).to(DType::kBFloat16);
        made.record(first);
    }
    Tensor b;
    {
        const StreamScope scope(second);
        second.wait(made);
        b = a.slice(1, 1, 129).clone();
        EXPECT_TRUE(same_bits(b, data.to(DType::kBFloat16).slice(1, 1, 129)));
    }
    first.synchronize();
    second.synchronize();
}

TEST(EventTest, IsDoneOnceItsWorkIs) {
    const Stream stream;
    const StreamScope scope(stream);
    Event before, after;
    EXPECT_TRUE(before.done()) << "nothing is recorded";
    EXPECT_NO_THROW(before.synchronize());
    before.record(stream);
    const Tensor work = Tensor::full({1 << 16}, 1.0f, DType::kFloat32, Device::kCuda);
    after.record(stream);
    after.synchronize();
    EXPECT_TRUE(before.done());
    EXPECT_TRUE(after.done());
    EXPECT_GE(Event::elapsed_ms(before, after), 0.0);
}

TEST(EventTest, TimeBetweenUnrecordedEventsIsAnError) {
    const Event from, to;
    try {
        Event::elapsed_ms(from, to);
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kCuda);
        EXPECT_NE(std::string(e.what()).find("[Event::elapsed_ms]"), std::string::npos) << e.what();
    }
}

TEST(CudaBufferTest, OutlivesTheStreamThatItWasMadeOn) {
    const Tensor data = gaussian({100}, DType::kFloat32, 1);
    auto stream = std::make_unique<Stream>();
    Tensor tensor;
    {
        const StreamScope scope(*stream);
        tensor = data.to(Device::kCuda);
    }
    stream.reset();
    EXPECT_TRUE(same_bits(tensor, data));
    tensor = Tensor();
    EXPECT_EQ(Buffer::live_bytes(Device::kCuda), 0u);
}

TEST(CudaBufferTest, IsAlignedAndCounted) {
    const std::size_t on_cpu = Buffer::live_bytes(Device::kCpu);
    Buffer::reset_peak(Device::kCuda);
    const std::size_t before = Buffer::live_bytes(Device::kCuda);
    {
        const Buffer a(1000, Device::kCuda);
        { const Buffer b(500, Device::kCuda); }
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 256, 0u);
        EXPECT_EQ(Buffer::live_bytes(Device::kCuda), before + 1000);
        EXPECT_EQ(Buffer::peak_bytes(Device::kCuda), before + 1500);
        EXPECT_EQ(Buffer::live_bytes(Device::kCpu), on_cpu);
    }
    EXPECT_EQ(Buffer::live_bytes(Device::kCuda), before);
    const Buffer empty(0, Device::kCuda);
    EXPECT_EQ(empty.data(), nullptr);
}

TEST(CudaBufferTest, SaysWhenMemoryRunsOut) {
    const std::size_t before = Buffer::live_bytes(Device::kCuda);
    try {
        const Buffer buffer(std::size_t{1} << 46, Device::kCuda);
        FAIL() << "no error";
    } catch (const Error& e) {
        const std::string got = e.what();
        EXPECT_EQ(e.code(), ErrorCode::kCuda);
        EXPECT_NE(got.find("[Buffer] out of GPU memory: no room for 70368744177664 bytes"),
                  std::string::npos)
            << got;
    }
    EXPECT_EQ(Buffer::live_bytes(Device::kCuda), before);
    EXPECT_NO_THROW(Buffer(1 << 20, Device::kCuda)) << "the error is not reported twice";
}

}  // namespace
}  // namespace evenkeel
