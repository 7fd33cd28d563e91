// What only the emulated GPU shows: waits of the host, orders of work that streams allow, memory that
// ends.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "framework/buffer.h"
#include "framework/device_memory.h"
#include "framework/graph.h"
#include "framework/memory_scope.h"
#include "framework/stream.h"
#include "framework/upload.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/queue.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::same_bits;

constexpr int kSeeds = 16;

// The calls that made the host wait since the last reset.
std::string waits() {
    std::string all;
    for (const auto& [call, count] : gpu_emulator::host_wait_calls()) {
        all += call + " " + std::to_string(count) + "; ";
    }
    return all;
}

// Of the device, without what its pool keeps unused.
std::size_t used_bytes() {
    cudaMemPool_t pool = nullptr;
    std::size_t free_bytes = 0, total_bytes = 0;
    EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
    EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    return total_bytes - free_bytes;
}

class StreamEmulatorTest : public ::testing::Test {
  protected:
    void TearDown() override {
        set_wait_guard({});
        gpu_emulator::set_seed(1);
    }
};

TEST_F(StreamEmulatorTest, StepsThroughAnUploadRingAndAGraphDoNotMakeTheHostWait) {
    const Stream stream, side;
    const StreamScope scope(stream);
    UploadRing ring(2);
    const Tensor in = Tensor::zeros({64}, DType::kFloat32, Device::kCuda);
    const Tensor out = Tensor::zeros({64}, DType::kBFloat16, Device::kCuda);
    Event fork(EventTiming::kOff), join(EventTiming::kOff);
    const Graph graph = Graph::capture(stream, [&] {
        const Tensor copy = in.clone();
        fork.record(stream);
        side.wait(fork);
        {
            const StreamScope on_side(side);
            out.copy_from(copy);
            join.record(side);
        }
        stream.wait(join);
    });
    const Tensor source = gaussian({64}, DType::kFloat32, 1);
    const auto step = [&] {
        ring.upload_to(in, source);
        graph.launch();
        const Tensor temporary = out.to(DType::kFloat32);
    };
    step();
    step();
    stream.synchronize();
    gpu_emulator::reset_host_waits();
    step();
    step();
    EXPECT_EQ(gpu_emulator::host_waits(), 0u) << waits();
    // As many uploads as slots are on their way: the next one may wait for the first, no other.
    step();
    EXPECT_LE(gpu_emulator::host_waits(), 1u) << waits();
    EXPECT_TRUE(same_bits(out, source.to(DType::kBFloat16)));
}

// The copy's own and, since memory that is not pinned promises nothing, one after it.
TEST_F(StreamEmulatorTest, ReadingBackIsTwoWaits) {
    const Stream stream;
    const StreamScope scope(stream);
    const Tensor sums = Tensor::zeros({2}, DType::kFloat64, Device::kCuda);
    const Tensor host = Tensor::zeros({2}, DType::kFloat64);
    gpu_emulator::reset_host_waits();
    host.copy_from(sums);
    EXPECT_EQ(gpu_emulator::host_waits(), 2u) << waits();
}

TEST_F(StreamEmulatorTest, AMissingWaitBetweenStreamsIsReportedWithEverySeed) {
    for (const bool waits_for_event : {true, false}) {
        int wrong = 0, reported = 0;
        for (int seed = 1; seed <= kSeeds; ++seed) {
            gpu_emulator::set_seed(static_cast<std::uint64_t>(seed));
            const Stream first, second;
            const Tensor data = gaussian({100}, DType::kFloat32, static_cast<std::uint64_t>(seed));
            const Tensor a = data.to(Device::kCuda),
                         b = Tensor::zeros({100}, DType::kBFloat16, Device::kCuda);
            const Tensor out = Tensor::zeros({100}, DType::kBFloat16, Device::kCuda);
            Stream::current().synchronize();
            Event made(EventTiming::kOff);
            {
                const StreamScope scope(first);
                b.copy_from(a);
                made.record(first);
            }
            {
                const StreamScope scope(second);
                if (waits_for_event) second.wait(made);
                out.copy_from(b);
                const Tensor got = out.to(Device::kCpu);
                wrong += same_bits(got, data.to(DType::kBFloat16)) ? 0 : 1;
            }
            first.synchronize();
            for (const std::string& text : gpu_emulator::take_reports()) {
                EXPECT_NE(text.find("stream race"), std::string::npos) << text;
                reported += text.find(" writes") != std::string::npos ? 1 : 0;
            }
        }
        if (waits_for_event) {
            EXPECT_EQ(wrong, 0);
            EXPECT_EQ(reported, 0);
        } else {
            EXPECT_EQ(reported, kSeeds);
            EXPECT_GT(wrong, kSeeds / 2) << "of " << kSeeds;
        }
    }
}

TEST_F(StreamEmulatorTest, UploadsAreRightInEveryOrder) {
    for (int seed = 0; seed <= kSeeds; ++seed) {
        gpu_emulator::set_seed(static_cast<std::uint64_t>(seed));
        const Stream stream;
        const StreamScope scope(stream);
        UploadRing ring(2);
        std::vector<Tensor> uploaded;
        for (std::uint64_t i = 0; i < 7; ++i) {
            uploaded.push_back(ring.upload(gaussian({33}, DType::kFloat32, i)));
        }
        for (std::uint64_t i = 0; i < 7; ++i) {
            EXPECT_TRUE(same_bits(uploaded[i], gaussian({33}, DType::kFloat32, i)))
                << "seed " << seed << ", upload " << i;
        }
    }
}

TEST_F(StreamEmulatorTest, AGuardEndsAWaitForWhatNeverHappens) {
    const Stream stream;
    const StreamScope scope(stream);
    const Tensor tensor = Tensor::zeros({4}, DType::kFloat32, Device::kCuda);
    bool answered = false;
    gpu_emulator::enqueue(stream.handle(), "waits", [&] { return [&] { return answered; }; });
    Event event(EventTiming::kOff);
    event.record(stream);
    double most = 0;
    set_wait_guard([&](double waited) {
        most = waited;
        throw_error(ErrorCode::kInternal, "test", "the peer died");
    });
    const std::function<void()> waiting[] = {
        [&] { stream.synchronize(); },
        [&] { event.synchronize(); },
        [&] { tensor.to(Device::kCpu); },
        [&] { tensor.copy_from(Tensor::zeros({4}, DType::kFloat32)); },
    };
    for (const auto& wait : waiting) {
        most = 0;
        try {
            wait();
            ADD_FAILURE() << "no error";
        } catch (const Error& e) {
            EXPECT_NE(std::string(e.what()).find("the peer died"), std::string::npos) << e.what();
        }
        EXPECT_GT(most, 0.0);
    }
    answered = true;
    EXPECT_NO_THROW(stream.synchronize());
}

TEST_F(StreamEmulatorTest, AGuardLetsAnUploadRingGoWhoseCopyNeverEnds) {
    const Stream stream;
    const StreamScope scope(stream);
    const Tensor target = Tensor::zeros({4}, DType::kFloat32, Device::kCuda);
    bool answered = false;
    set_wait_guard([](double) { throw_error(ErrorCode::kInternal, "test", "the peer died"); });
    {
        UploadRing ring;
        ring.upload_to(target, gaussian({4}, DType::kFloat32, 1));
        stream.synchronize();
        gpu_emulator::enqueue(stream.handle(), "waits", [&] { return [&] { return answered; }; });
        ring.upload_to(target, gaussian({4}, DType::kFloat32, 2));
    }
    answered = true;
    set_wait_guard({});
    EXPECT_TRUE(same_bits(target, gaussian({4}, DType::kFloat32, 2)));
}

TEST_F(StreamEmulatorTest, WaitsUnderAGuardAreCountedLikeOthers) {
    const Stream stream;
    const StreamScope scope(stream);
    const Tensor tensor = Tensor::zeros({4}, DType::kFloat32, Device::kCuda);
    set_wait_guard([](double) {});
    gpu_emulator::reset_host_waits();
    stream.synchronize();
    tensor.to(Device::kCpu);
    EXPECT_EQ(gpu_emulator::host_waits(), 3u) << waits();
}

TEST_F(StreamEmulatorTest, MemoryThatEndsIsOneErrorAndCanBeUsedAgain) {
    const std::size_t held = Buffer::live_bytes(Device::kCuda);
    setenv("EVENKEEL_EMULATOR_MEMORY", std::to_string(used_bytes() + (1 << 20)).c_str(), 1);
    {
        const Buffer most(3 << 18, Device::kCuda);
        EXPECT_EQ(memory_of(Device::kCuda).free, std::size_t{1} << 18);
        try {
            const MemoryScope scope("layers.1", ".attention (backward)");
            const Buffer more(1 << 19, Device::kCuda);
            ADD_FAILURE() << "no error";
        } catch (const OutOfMemory& e) {
            const std::string got = e.what();
            EXPECT_EQ(e.code(), ErrorCode::kCuda);
            EXPECT_NE(got.find("[Buffer] out of GPU memory: no room for 524288 bytes for "
                               "layers.1.attention (backward) beside the " +
                               std::to_string(held + (3 << 18)) + " already held"),
                      std::string::npos)
                << got;
        }
        EXPECT_NO_THROW(Buffer(1 << 17, Device::kCuda));
    }
    EXPECT_NO_THROW(Buffer(1 << 20, Device::kCuda));
    unsetenv("EVENKEEL_EMULATOR_MEMORY");
}

}  // namespace
}  // namespace evenkeel
