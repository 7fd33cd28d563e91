// Captured streams and the graphs that they become.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu_emulator/end_to_end_kernels.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/queue.h"

namespace gpu_emulator {
namespace {

constexpr int kCount = 64, kSeeds = 12;
constexpr std::size_t kBytes = kCount * sizeof(float);

std::string reports() {
    std::string all;
    for (const std::string& text : take_reports()) all += text + '\n';
    return all;
}

class Graphs : public ::testing::Test {
  protected:
    void SetUp() override {
        set_seed(1);
        ASSERT_EQ(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking), cudaSuccess);
        ASSERT_EQ(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking), cudaSuccess);
        ASSERT_EQ(cudaEventCreate(&fork_), cudaSuccess);
        ASSERT_EQ(cudaEventCreate(&join_), cudaSuccess);
        for (float** p : {&a_, &b_, &c_}) {
            ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(p), kBytes), cudaSuccess);
        }
        ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned_), kBytes), cudaSuccess);
    }
    void TearDown() override {
        EXPECT_EQ(reports(), "");
        cudaGetLastError();
        EXPECT_EQ(cudaStreamDestroy(main_), cudaSuccess);
        EXPECT_EQ(cudaStreamDestroy(side_), cudaSuccess);
        EXPECT_EQ(cudaEventDestroy(fork_), cudaSuccess);
        EXPECT_EQ(cudaEventDestroy(join_), cudaSuccess);
        for (float* p : {a_, b_, c_}) EXPECT_EQ(cudaFree(p), cudaSuccess);
        EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
        set_seed(1);
    }

    void add(float* out, const float* x, const float* y, cudaStream_t stream) const {
        end_to_end::add(out, x, y, kCount, stream);
    }
    cudaGraphExec_t capture(const std::function<void()>& work) const {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        EXPECT_EQ(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        work();
        EXPECT_EQ(cudaStreamEndCapture(main_, &graph), cudaSuccess);
        EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        return exec;
    }
    // Captures work that must fail at its end.
    cudaError_t end_of(const std::function<void()>& work) const {
        cudaGraph_t graph = nullptr;
        EXPECT_EQ(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        work();
        const cudaError_t error = cudaStreamEndCapture(main_, &graph);
        EXPECT_EQ(graph == nullptr, error != cudaSuccess);
        if (graph != nullptr) cudaGraphDestroy(graph);
        cudaGetLastError();
        return error;
    }
    float value_of(const float* device) const {
        std::vector<float> values(kCount);
        cudaMemcpy(values.data(), device, kBytes, cudaMemcpyDeviceToHost);
        for (const float value : values) {
            if (value != values[0]) return -1;
        }
        return values[0];
    }
    void fill_pinned(float value) const {
        for (int i = 0; i < kCount; ++i) pinned_[i] = value;
    }

    cudaStream_t main_ = nullptr, side_ = nullptr;
    cudaEvent_t fork_ = nullptr, join_ = nullptr;
    float *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *pinned_ = nullptr;
};

TEST_F(Graphs, DoNothingWhenCapturedAndTheirWorkAtEachLaunch) {
    fill_pinned(1);
    const cudaGraphExec_t exec = capture([&] {
        cudaMemcpyAsync(a_, pinned_, kBytes, cudaMemcpyHostToDevice, main_);
        add(b_, a_, a_, main_);
        add(b_, b_, b_, main_);
    });
    ASSERT_EQ(cudaMemset(b_, 0, kBytes), cudaSuccess);
    EXPECT_EQ(value_of(b_), 0);
    reset_host_waits();
    for (int run = 1; run <= 3; ++run) {
        fill_pinned(static_cast<float>(run));  // pinned memory is read when the copy runs
        ASSERT_EQ(cudaGraphLaunch(exec, side_), cudaSuccess);
        EXPECT_EQ(host_waits(), 0u);
        ASSERT_EQ(cudaStreamSynchronize(side_), cudaSuccess);
        EXPECT_EQ(value_of(b_), static_cast<float>(4 * run));
        reset_host_waits();
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, main_), cudaErrorInvalidValue);
    cudaGetLastError();
}

TEST_F(Graphs, KeepTheOrderOfForkedStreamsWithAllSeeds) {
    fill_pinned(1);
    const cudaGraphExec_t exec = capture([&] {
        cudaMemcpyAsync(a_, pinned_, kBytes, cudaMemcpyHostToDevice, main_);
        cudaEventRecord(fork_, main_);
        cudaStreamWaitEvent(side_, fork_, 0);
        add(b_, a_, a_, side_);
        add(b_, b_, a_, side_);  // 3
        add(c_, a_, a_, main_);  // 2
        cudaEventRecord(join_, side_);
        cudaStreamWaitEvent(main_, join_, 0);
        add(c_, c_, b_, main_);  // 5
    });
    for (int seed = 0; seed < kSeeds; ++seed) {
        set_seed(static_cast<std::uint64_t>(seed));
        ASSERT_EQ(cudaMemset(c_, 0, kBytes), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        // Launches of one graph follow one another, in whatever streams.
        ASSERT_EQ(cudaGraphLaunch(exec, main_), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(exec, side_), cudaSuccess);
        add(c_, c_, c_, side_);
        ASSERT_EQ(cudaStreamSynchronize(side_), cudaSuccess);
        EXPECT_EQ(value_of(c_), 10) << "seed " << seed;
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(Graphs, ReportAForkThatDoesNotWaitWithEverySeed) {
    int wrong = 0;
    fill_pinned(1);
    const cudaGraphExec_t exec = capture([&] {
        cudaEventRecord(fork_, main_);  // too early
        cudaMemcpyAsync(a_, pinned_, kBytes, cudaMemcpyHostToDevice, main_);
        cudaStreamWaitEvent(side_, fork_, 0);
        add(b_, a_, a_, side_);
        cudaEventRecord(join_, side_);
        cudaStreamWaitEvent(main_, join_, 0);
    });
    for (int seed = 1; seed <= kSeeds; ++seed) {
        set_seed(static_cast<std::uint64_t>(seed));
        ASSERT_EQ(cudaMemset(a_, 0, kBytes), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(exec, main_), cudaSuccess);
        cudaStreamSynchronize(main_);
        wrong += reports().find("stream race") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(wrong, kSeeds);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(Graphs, RunTheWorkOfLibrariesAfreshAtEachLaunch) {
    int made = 0, calls = 0;
    const cudaGraphExec_t exec = capture([&] {
        const auto work = [&] {
            ++made;
            return [&calls, left = 2]() mutable {
                ++calls;
                return left-- == 0;
            };
        };
        ASSERT_EQ(enqueue(main_, "asks three times", work), cudaSuccess);
    });
    EXPECT_EQ(made, 0);
    for (int run = 1; run <= 2; ++run) {
        ASSERT_EQ(cudaGraphLaunch(exec, main_), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(main_), cudaSuccess);
        EXPECT_EQ(made, run);
        EXPECT_EQ(calls, 3 * run);
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(Graphs, HaveMemoryOfTheirOwn) {
    std::size_t before = 0, during = 0, total = 0;
    fill_pinned(3);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
    const cudaGraphExec_t exec = capture([&] {
        for (int i = 0; i < 2; ++i) {
            float* memory = nullptr;
            cudaMallocAsync(reinterpret_cast<void**>(&memory), kBytes, main_);
            cudaMemcpyAsync(memory, pinned_, kBytes, cudaMemcpyHostToDevice, main_);
            add(a_, memory, memory, main_);
            cudaFreeAsync(memory, main_);
        }
    });
    ASSERT_EQ(cudaMemGetInfo(&during, &total), cudaSuccess);
    EXPECT_EQ(before - during, kBytes) << "the second piece takes the first one's place";
    for (int run = 0; run < 3; ++run) {
        ASSERT_EQ(cudaGraphLaunch(exec, main_), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(main_), cudaSuccess);
        EXPECT_EQ(value_of(a_), 6);
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    ASSERT_EQ(cudaMemGetInfo(&during, &total), cudaSuccess);
    EXPECT_EQ(before, during);
}

TEST_F(Graphs, MayLeaveMemoryThatIsFreedBeforeTheNextLaunch) {
    float* memory = nullptr;
    const cudaGraphExec_t exec = capture([&] {
        cudaMallocAsync(reinterpret_cast<void**>(&memory), kBytes, main_);
        cudaMemsetAsync(memory, 0, kBytes, main_);
    });
    ASSERT_EQ(cudaGraphLaunch(exec, main_), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, main_), cudaErrorInvalidValue);
    EXPECT_NE(reports().find("memory of the launch before is not freed"), std::string::npos);
    ASSERT_EQ(cudaFreeAsync(memory, main_), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, main_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(main_), cudaSuccess);
    EXPECT_EQ(value_of(memory), 0);
    ASSERT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    cudaGetLastError();
}

TEST_F(Graphs, FreeWhatTheLaunchBeforeLeftIfToldSo) {
    float* memory = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    cudaMallocAsync(reinterpret_cast<void**>(&memory), kBytes, main_);
    cudaMemcpyAsync(memory, pinned_, kBytes, cudaMemcpyHostToDevice, main_);
    ASSERT_EQ(cudaStreamEndCapture(main_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch),
              cudaSuccess);
    for (int run = 0; run < 3; ++run) {
        fill_pinned(static_cast<float>(run));
        ASSERT_EQ(cudaGraphLaunch(exec, main_), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(main_), cudaSuccess);
        EXPECT_EQ(value_of(memory), static_cast<float>(run));
    }
    ASSERT_EQ(cudaFreeAsync(memory, main_), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(Graphs, RecordExternalEventsAtEachLaunch) {
    const cudaGraphExec_t exec = capture([&] {
        cudaMemsetAsync(a_, 0, kBytes, main_);
        ASSERT_EQ(cudaEventRecordWithFlags(join_, main_, cudaEventRecordExternal), cudaSuccess);
    });
    EXPECT_EQ(cudaEventQuery(join_), cudaSuccess) << "nothing is recorded";
    bool told = false;
    ASSERT_EQ(enqueue(main_, "waits", [&] { return [&] { return told; }; }), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, main_), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(join_), cudaErrorNotReady);
    told = true;
    EXPECT_EQ(cudaEventSynchronize(join_), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    cudaGetLastError();
}

TEST_F(Graphs, TellThatAStreamIsCaptured) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    ASSERT_EQ(cudaStreamIsCapturing(main_, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
    end_of([&] {
        ASSERT_EQ(cudaStreamIsCapturing(main_, &status), cudaSuccess);
        EXPECT_EQ(status, cudaStreamCaptureStatusActive);
#if CUDART_VERSION >= 13000
        unsigned long long id = 0;
        ASSERT_EQ(cudaStreamGetCaptureInfo(main_, &status, &id), cudaSuccess);
        EXPECT_EQ(status, cudaStreamCaptureStatusActive);
        EXPECT_NE(id, 0u);
#endif
        cudaStreamSynchronize(main_);
        ASSERT_EQ(cudaStreamIsCapturing(main_, &status), cudaSuccess);
        EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    });
}

TEST_F(Graphs, CapturesEndWithWhatAGpuDoesNotAllow) {
    float pageable[kCount] = {};
    void* memory = nullptr;
    using Call = std::function<cudaError_t()>;
    const std::pair<const char*, Call> calls[] = {
        {"stream wait", [&] { return cudaStreamSynchronize(main_); }},
        {"wait for another stream", [&] { return cudaStreamSynchronize(side_); }},
        {"stream query", [&] { return cudaStreamQuery(main_); }},
        {"device wait", [&] { return cudaDeviceSynchronize(); }},
        {"cudaMalloc", [&] { return cudaMalloc(&memory, 8); }},
        {"cudaFree", [&] { return cudaFree(a_); }},
        {"synchronous copy",
         [&] { return cudaMemcpy(a_, pageable, kBytes, cudaMemcpyHostToDevice); }},
        {"copy to pageable memory",
         [&] { return cudaMemcpyAsync(pageable, a_, kBytes, cudaMemcpyDeviceToHost, main_); }},
        {"copy from pageable memory",
         [&] { return cudaMemcpyAsync(a_, pageable, kBytes, cudaMemcpyHostToDevice, main_); }},
    };
    for (const auto& [name, call] : calls) {
        SCOPED_TRACE(name);
        EXPECT_EQ(end_of([&] {
                      EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
                      EXPECT_EQ(cudaMemsetAsync(a_, 0, kBytes, main_),
                                cudaErrorStreamCaptureInvalidated);
                  }),
                  cudaErrorStreamCaptureInvalidated);
    }
    EXPECT_EQ(end_of([&] {
                  ASSERT_EQ(cudaEventRecord(fork_, main_), cudaSuccess);
                  EXPECT_EQ(cudaEventSynchronize(fork_), cudaErrorCapturedEvent);
              }),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaStreamWaitEvent(side_, fork_, 0), cudaErrorCapturedEvent)
        << "its capture has ended";
    ASSERT_EQ(cudaEventRecord(fork_, side_), cudaSuccess);
    EXPECT_EQ(end_of([&] {
                  EXPECT_EQ(cudaStreamWaitEvent(main_, fork_, 0), cudaErrorStreamCaptureIsolation);
              }),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(end_of([&] {
                  cudaEventRecord(fork_, main_);
                  cudaStreamWaitEvent(side_, fork_, 0);
                  cudaMemsetAsync(a_, 0, kBytes, side_);
              }),
              cudaErrorStreamCaptureUnjoined);
    EXPECT_EQ(end_of([&] { EXPECT_EQ(cudaFreeAsync(a_, main_), cudaErrorInvalidValue); }),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_NE(reports().find("memory from outside of the graph"), std::string::npos);
    EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed),
              cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(main_, &graph), cudaErrorIllegalState);
    cudaGetLastError();
}

TEST_F(Graphs, AThreadLocalCaptureLetsOtherThreadsWait) {
    EXPECT_EQ(end_of([&] {
                  std::thread([&] { EXPECT_EQ(cudaStreamSynchronize(side_), cudaSuccess); }).join();
                  cudaMemsetAsync(a_, 0, kBytes, main_);
              }),
              cudaSuccess);
}

TEST_F(Graphs, TheDefaultStreamMayNotWaitForACapturedOne) {
    cudaStream_t blocking = nullptr;
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(a_, 0, kBytes, nullptr), cudaErrorStreamCaptureImplicit);
    EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
    ASSERT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
    cudaGetLastError();
}

}  // namespace
}  // namespace gpu_emulator
