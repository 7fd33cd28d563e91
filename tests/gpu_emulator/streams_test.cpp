// Streams that do their work late, and in any order that a program allows.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/end_to_end_kernels.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/queue.h"

namespace gpu_emulator {
namespace {

constexpr int kCount = 64, kSeeds = 24;
constexpr std::size_t kBytes = kCount * sizeof(float);

std::string reports() {
    std::string all;
    for (const std::string& text : take_reports()) all += text + '\n';
    return all;
}

class Environment {
  public:
    Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
    ~Environment() { unsetenv(name_); }

  private:
    const char* name_;
};

class Streams : public ::testing::Test {
  protected:
    void SetUp() override {
        set_seed(1);
        ASSERT_EQ(cudaStreamCreateWithFlags(&first_, cudaStreamNonBlocking), cudaSuccess);
        ASSERT_EQ(cudaStreamCreateWithFlags(&second_, cudaStreamNonBlocking), cudaSuccess);
        ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
        ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&a_), kBytes), cudaSuccess);
        ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&b_), kBytes), cudaSuccess);
        ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned_), kBytes), cudaSuccess);
    }
    void TearDown() override {
        EXPECT_EQ(reports(), "");
        cudaGetLastError();
        for (float* p : {a_, b_}) EXPECT_EQ(cudaFree(p), cudaSuccess);
        EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
        EXPECT_EQ(cudaStreamDestroy(first_), cudaSuccess);
        EXPECT_EQ(cudaStreamDestroy(second_), cudaSuccess);
        EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
        set_seed(1);
    }

    void fill_pinned(float value) const {
        for (int i = 0; i < kCount; ++i) pinned_[i] = value;
    }
    // Sets a device array and waits for it.
    void set(float* device, float value) const {
        const std::vector<float> values(kCount, value);
        ASSERT_EQ(cudaMemcpy(device, values.data(), kBytes, cudaMemcpyHostToDevice), cudaSuccess);
    }
    // The array's value; -1: they differ.
    float value_of(const float* device) const {
        std::vector<float> values(kCount);
        cudaMemcpy(values.data(), device, kBytes, cudaMemcpyDeviceToHost);
        for (const float value : values) {
            if (value != values[0]) return -1;
        }
        return values[0];
    }
    // With how many seeds the run gives another value than 4, or a report.
    int wrong_seeds(const std::function<float()>& run) {
        int wrong = 0;
        wrong_values_ = 0;
        for (int seed = 1; seed <= kSeeds; ++seed) {
            set_seed(static_cast<std::uint64_t>(seed));
            const float value = run();
            cudaDeviceSynchronize();
            const bool reported = !reports().empty();
            wrong += value != 4 || reported ? 1 : 0;
            wrong_values_ += value != 4 ? 1 : 0;
            cudaGetLastError();
        }
        return wrong;
    }

    cudaStream_t first_ = nullptr, second_ = nullptr;
    cudaEvent_t event_ = nullptr;
    float *a_ = nullptr, *b_ = nullptr, *pinned_ = nullptr;
    int wrong_values_ = 0;  // of the last wrong_seeds()
};

TEST_F(Streams, AMissingEventIsReportedWithEverySeed) {
    const auto run = [&](bool with_event) {
        set(a_, 0);
        fill_pinned(1);
        cudaMemcpyAsync(a_, pinned_, kBytes, cudaMemcpyHostToDevice, first_);
        end_to_end::add(a_, a_, a_, kCount, first_);
        cudaEventRecord(event_, first_);
        if (with_event) cudaStreamWaitEvent(second_, event_, 0);
        end_to_end::add(b_, a_, a_, kCount, second_);
        cudaStreamSynchronize(second_);
        const float value = value_of(b_);
        cudaDeviceSynchronize();
        return value;
    };
    EXPECT_EQ(wrong_seeds([&] { return run(false); }), kSeeds);
    EXPECT_GT(wrong_values_, kSeeds / 2) << "the order of the work shows it too";
    EXPECT_EQ(wrong_seeds([&] { return run(true); }), 0);
}

TEST_F(Streams, AWrongStreamIsReportedWithEverySeed) {
    const auto run = [&](cudaStream_t stream) {
        set(a_, 1);
        end_to_end::add(a_, a_, a_, kCount, first_);
        end_to_end::add(a_, a_, a_, kCount, first_);
        cudaMemcpyAsync(pinned_, a_, kBytes, cudaMemcpyDeviceToHost, stream);
        cudaStreamSynchronize(stream);
        return pinned_[0];
    };
    EXPECT_EQ(wrong_seeds([&] { return run(second_); }), kSeeds);
    EXPECT_GT(wrong_values_, kSeeds / 2) << "the order of the work shows it too";
    EXPECT_EQ(wrong_seeds([&] { return run(first_); }), 0);
}

TEST_F(Streams, ReadPinnedMemoryLateAndPageableMemoryAtOnce) {
    const auto run = [&](float* host, bool waits) {
        for (int i = 0; i < kCount; ++i) host[i] = 4;
        cudaMemcpyAsync(a_, host, kBytes, cudaMemcpyHostToDevice, first_);
        cudaEventRecord(event_, first_);
        if (waits) cudaEventSynchronize(event_);
        for (int i = 0; i < kCount; ++i) host[i] = 5;
        cudaStreamSynchronize(first_);
        return value_of(a_);
    };
    std::vector<float> pageable(kCount);
    EXPECT_GT(wrong_seeds([&] { return run(pinned_, false); }), kSeeds / 2);
    EXPECT_EQ(wrong_seeds([&] { return run(pinned_, true); }), 0);
    EXPECT_EQ(wrong_seeds([&] { return run(pageable.data(), false); }), 0);
}

TEST_F(Streams, WritePinnedMemoryLateAndPageableMemoryBeforeTheCallReturns) {
    const auto run = [&](float* host, bool waits) {
        set(a_, 4);
        for (int i = 0; i < kCount; ++i) host[i] = 5;
        cudaMemcpyAsync(host, a_, kBytes, cudaMemcpyDeviceToHost, first_);
        if (waits) cudaStreamSynchronize(first_);
        const float value = host[0];
        cudaStreamSynchronize(first_);
        return value;
    };
    std::vector<float> pageable(kCount);
    EXPECT_GT(wrong_seeds([&] { return run(pinned_, false); }), kSeeds / 2);
    EXPECT_EQ(wrong_seeds([&] { return run(pinned_, true); }), 0);
    EXPECT_EQ(wrong_seeds([&] { return run(pageable.data(), false); }), 0);
}

TEST_F(Streams, TheDefaultStreamIsInOrderWithBlockingStreamsOnly) {
    cudaStream_t blocking = nullptr;
    ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
    const auto run = [&](cudaStream_t stream) {
        set(a_, 1);
        set(b_, 0);
        end_to_end::add(a_, a_, a_, kCount, stream);
        end_to_end::add(b_, a_, a_, kCount, nullptr);
        end_to_end::add(b_, b_, b_, kCount, stream);
        end_to_end::add(a_, b_, b_, kCount, nullptr);  // 16
        cudaStreamSynchronize(nullptr);
        const float value = value_of(a_) / 4;
        cudaDeviceSynchronize();
        return value;
    };
    EXPECT_EQ(wrong_seeds([&] { return run(blocking); }), 0);
    EXPECT_EQ(wrong_seeds([&] { return run(cudaStreamPerThread); }), 0);
    EXPECT_EQ(wrong_seeds([&] { return run(first_); }), kSeeds);
    EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(Streams, RacesNameBothSidesAndWaitsOfTheHostAreOrder) {
    set(a_, 1);
    end_to_end::add(a_, a_, a_, kCount, first_);
    cudaStreamSynchronize(first_);
    end_to_end::add(b_, a_, a_, kCount, second_);
    cudaEventRecord(event_, second_);
    while (cudaEventQuery(event_) == cudaErrorNotReady) {
    }
    end_to_end::add(b_, b_, b_, kCount, first_);
    EXPECT_EQ(reports(), "");
    end_to_end::add(a_, b_, b_, kCount, first_);
    cudaMemsetAsync(b_, 0, kBytes, second_);
    const std::string text = reports();
    EXPECT_NE(text.find("stream race: "), std::string::npos) << text;
    EXPECT_NE(text.find("add_kernel"), std::string::npos) << text;
    EXPECT_NE(text.find("cudaMemsetAsync"), std::string::npos) << text;
    EXPECT_NE(text.find("of an allocation of 256"), std::string::npos) << text;
    cudaGetLastError();
}

TEST_F(Streams, MayWorkOnPartsOfOneAllocationAtATime) {
    set(a_, 1);
    set(b_, 1);
    for (int i = 0; i < 4; ++i) {
        // Parts that meet within 16 bytes.
        end_to_end::add(a_, b_, b_, 5, first_);
        end_to_end::add(a_ + 5, b_ + 5, b_ + 5, kCount - 5, second_);
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(value_of(a_), 2);
}

TEST_F(Streams, DoTheirWorkAtOnceWithSeed0) {
    set(a_, 0);
    set_seed(0);
    fill_pinned(4);
    ASSERT_EQ(cudaMemcpyAsync(a_, pinned_, kBytes, cudaMemcpyHostToDevice, first_), cudaSuccess);
    fill_pinned(5);
    EXPECT_EQ(cudaStreamQuery(first_), cudaSuccess);
    EXPECT_EQ(value_of(a_), 4);
}

TEST_F(Streams, MemoryIsThereFromItsAllocationToItsFreeInTheOrderOfTheStream) {
    // wrong: 1 the allocation is not waited for, 2 the free does not wait for the use
    const auto run = [&](int wrong) {
        set(b_, 2);
        float* memory = nullptr;
        EXPECT_EQ(cudaMallocAsync(reinterpret_cast<void**>(&memory), kBytes, first_), cudaSuccess);
        cudaEventRecord(event_, first_);
        if (wrong != 1) cudaStreamWaitEvent(second_, event_, 0);
        end_to_end::add(memory, b_, b_, kCount, second_);
        cudaMemcpyAsync(pinned_, memory, kBytes, cudaMemcpyDeviceToHost, second_);
        cudaEventRecord(event_, second_);
        if (wrong != 2) cudaStreamWaitEvent(first_, event_, 0);
        cudaFreeAsync(memory, first_);
        cudaStreamSynchronize(first_);
        cudaStreamSynchronize(second_);
        return pinned_[0];
    };
    EXPECT_EQ(wrong_seeds([&] { return run(0); }), 0);
    EXPECT_EQ(wrong_seeds([&] { return run(1); }), kSeeds);
    EXPECT_EQ(wrong_seeds([&] { return run(2); }), kSeeds);
}

TEST_F(Streams, SayThatMemoryIsNotThereYet) {
    set_seed(0);
    bool told = false;
    ASSERT_EQ(enqueue(first_, "waits", [&] { return [&] { return told; }; }), cudaSuccess);
    float* memory = nullptr;
    ASSERT_EQ(cudaMallocAsync(reinterpret_cast<void**>(&memory), kBytes, first_), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(memory, 0, kBytes, second_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(second_), cudaErrorLaunchFailure);
    const std::string text = reports();
    EXPECT_NE(text.find("in memory whose allocation the stream has not come to"), std::string::npos)
        << text;
    told = true;
    EXPECT_EQ(cudaFreeAsync(memory, first_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
}

TEST_F(Streams, EventsTellWhatIsDone) {
    set_seed(3);
    bool answered = false;
    ASSERT_EQ(enqueue(first_, "waits", [&] { return [&] { return answered; }; }), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamQuery(first_), cudaErrorNotReady);
    EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
    answered = true;
    int queries = 0;
    while (cudaEventQuery(event_) == cudaErrorNotReady) ASSERT_LT(++queries, 1000);
    EXPECT_EQ(cudaStreamQuery(first_), cudaSuccess);
    cudaGetLastError();
}

TEST_F(Streams, AnEventIsWhatItWasWhenItWasWaitedFor) {
    for (int seed = 1; seed <= kSeeds; ++seed) {
        set_seed(static_cast<std::uint64_t>(seed));
        bool answered = false;
        ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
        ASSERT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
        ASSERT_EQ(enqueue(first_, "waits", [&] { return [&] { return answered; }; }), cudaSuccess);
        ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
        EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
        answered = true;
        EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
        cudaGetLastError();
    }
}

TEST_F(Streams, WorkThatCannotGoOnLetsOtherStreamsWork) {
    for (int seed = 0; seed <= kSeeds; ++seed) {
        set_seed(static_cast<std::uint64_t>(seed));
        std::vector<int> order;
        bool told = false;
        const auto waiting = [&] {
            order.push_back(1);
            return [&] { return told; };
        };
        const auto telling = [&] {
            order.push_back(2);
            return [&] { return told = true; };
        };
        ASSERT_EQ(enqueue(first_, "waits", waiting), cudaSuccess);
        ASSERT_EQ(enqueue(second_, "tells", telling), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
        EXPECT_TRUE(told);
        EXPECT_EQ(order.size(), 2u);
        ASSERT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
    }
}

TEST_F(Streams, AThreadThatWaitsLetsAnotherOneEnqueue) {
    bool told = false;
    ASSERT_EQ(enqueue(first_, "waits", [&] { return [&] { return told; }; }), cudaSuccess);
    std::thread other([&] {
        enqueue(second_, "tells", [&] { return [&] { return told = true; }; });
        cudaStreamSynchronize(second_);
    });
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    other.join();
}

TEST_F(Streams, WorkOfADestroyedStreamIsDone) {
    set(a_, 1);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    end_to_end::add(a_, a_, a_, kCount, stream);
    end_to_end::add(a_, a_, a_, kCount, stream);
    ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(value_of(a_), 4);
}

TEST_F(Streams, CallsThatMakeTheHostWaitAreCounted) {
    float pageable[kCount] = {};
    void* memory = nullptr;
    reset_host_waits();
    // None of these.
    cudaMemcpyAsync(a_, pageable, kBytes, cudaMemcpyHostToDevice, first_);
    cudaMemcpyAsync(pinned_, a_, kBytes, cudaMemcpyDeviceToHost, first_);
    cudaMemsetAsync(a_, 0, kBytes, first_);
    cudaMallocAsync(&memory, 8, first_);
    cudaFreeAsync(memory, first_);
    cudaEventRecord(event_, first_);
    cudaStreamWaitEvent(second_, event_, 0);
    cudaStreamQuery(first_);
    cudaEventQuery(event_);
    EXPECT_EQ(host_waits(), 0u);
    cudaStreamSynchronize(first_);
    cudaEventSynchronize(event_);
    cudaDeviceSynchronize();
    cudaMemcpyAsync(pageable, a_, kBytes, cudaMemcpyDeviceToHost, first_);
    cudaMemcpy(a_, pageable, kBytes, cudaMemcpyHostToDevice);
    EXPECT_EQ(host_waits(), 5u);
    cudaMalloc(&memory, 8);
    cudaFree(memory);
    EXPECT_EQ(host_waits(), 7u);
    EXPECT_EQ(host_wait_calls().at("cudaMemcpyAsync"), 1u);
    cudaGetLastError();
}

TEST_F(Streams, FailuresShowAtALaterCallAndDropTheWorkBehind) {
    set_seed(0);
    bool ran = false;
    const auto failing = [] {
        report("a library's work fails");
        set_kernel_failed();
        return [] { return true; };
    };
    EXPECT_EQ(enqueue(first_, "fails", failing), cudaSuccess);
    EXPECT_EQ(enqueue(first_, "late", [&] { return [&] { return ran = true; }; }),
              cudaErrorLaunchFailure);
    EXPECT_EQ(cudaStreamSynchronize(second_), cudaErrorLaunchFailure);
    EXPECT_FALSE(ran);
    EXPECT_NE(reports().find("a library's work fails"), std::string::npos);
}

TEST(StreamsDeathTest, UnfinishedWorkIsDoneBeforeTheProcessEnds) {
    for (const std::uint64_t seed : {1, 2, 3, 4}) {
        EXPECT_EXIT(
            {
                set_seed(seed);
                float* data = nullptr;
                cudaMalloc(reinterpret_cast<void**>(&data), kBytes);
                for (int i = 0; i < 3; ++i) cudaMemsetAsync(data, 0, kBytes, nullptr);
                end_to_end::overrun(data, kCount);
                std::exit(0);
            },
            testing::ExitedWithCode(1), "overrun_kernel");
    }
}

// ---- Memory and devices

std::uint64_t pool_bytes(cudaMemPoolAttr attribute) {
    cudaMemPool_t pool = nullptr;
    std::uint64_t bytes = 0;
    EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
    EXPECT_EQ(cudaMemPoolGetAttribute(pool, attribute, &bytes), cudaSuccess);
    return bytes;
}

TEST_F(Streams, ThePoolReusesWhatItsStreamHasFreedAndGivesBackTheRest) {
    cudaMemPool_t pool = nullptr;
    ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
    std::uint64_t threshold = 0;
    ASSERT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
    const std::uint64_t before = pool_bytes(cudaMemPoolAttrReservedMemCurrent);
    std::size_t free_before = 0, free_now = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
    void* memory = nullptr;
    for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(cudaMallocAsync(&memory, 1 << 20, first_), cudaSuccess);
        ASSERT_EQ(cudaFreeAsync(memory, first_), cudaSuccess);
    }
    EXPECT_EQ(pool_bytes(cudaMemPoolAttrReservedMemCurrent), before + (1 << 20));
    EXPECT_EQ(pool_bytes(cudaMemPoolAttrUsedMemCurrent), before);
    ASSERT_EQ(cudaMemGetInfo(&free_now, &total), cudaSuccess);
    EXPECT_EQ(free_now, free_before - (1 << 20));
    ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    EXPECT_EQ(pool_bytes(cudaMemPoolAttrReservedMemCurrent), before);
    EXPECT_GE(pool_bytes(cudaMemPoolAttrReservedMemHigh), before + (1 << 20));
}

TEST_F(Streams, MemoryEndsWhereTheEnvironmentSaysSo) {
    std::size_t free_bytes = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    const std::size_t limit = total - free_bytes + (1 << 20);
    const Environment memory("EVENKEEL_EMULATOR_MEMORY", std::to_string(limit).c_str());
    ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    EXPECT_EQ(total, limit);
    EXPECT_EQ(free_bytes, 1u << 20);
    void *half = nullptr, *other = nullptr;
    ASSERT_EQ(cudaMallocAsync(&half, 1 << 19, first_), cudaSuccess);
    EXPECT_EQ(cudaMallocAsync(&other, (1 << 19) + 1, first_), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaMalloc(&other, (1 << 19) + 1), cudaErrorMemoryAllocation);
    ASSERT_EQ(cudaFreeAsync(half, first_), cudaSuccess);
    ASSERT_EQ(cudaMallocAsync(&other, 1 << 20, first_), cudaSuccess);
    ASSERT_EQ(cudaFreeAsync(other, first_), cudaSuccess);
    cudaGetLastError();
}

TEST_F(Streams, ThereMayBeSeveralDevices) {
    const Environment count("EVENKEEL_EMULATED_GPUS", "3");
    int devices = 0, device = -1;
    ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
    EXPECT_EQ(devices, 3);
    cudaDeviceProp first = {}, last = {};
    ASSERT_EQ(cudaGetDeviceProperties(&first, 0), cudaSuccess);
    ASSERT_EQ(cudaGetDeviceProperties(&last, 2), cudaSuccess);
    EXPECT_NE(std::string(first.uuid.bytes, 16), std::string(last.uuid.bytes, 16));
    char bus[32];
    ASSERT_EQ(cudaDeviceGetPCIBusId(bus, sizeof bus, 2), cudaSuccess);
    EXPECT_STREQ(bus, "0000:03:00.0");
    EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
    ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
    std::thread([] {
        int of_thread = -1;
        EXPECT_EQ(cudaGetDevice(&of_thread), cudaSuccess);
        EXPECT_EQ(of_thread, 0);
    }).join();
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 2);
    end_to_end::add(a_, a_, a_, kCount, first_);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle) << "a stream of another device";
    float* memory = nullptr;
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), kBytes), cudaSuccess);
    cudaPointerAttributes attributes = {};
    ASSERT_EQ(cudaPointerGetAttributes(&attributes, memory), cudaSuccess);
    EXPECT_EQ(attributes.device, 2);
    set(memory, 2);
    end_to_end::add(memory, memory, memory, kCount, nullptr);
    EXPECT_EQ(value_of(memory), 4);
    ASSERT_EQ(cudaFree(memory), cudaSuccess);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

}  // namespace
}  // namespace gpu_emulator
