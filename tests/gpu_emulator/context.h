// What all functions of the emulated runtime share: the lock, the errors that stay, the simulated
// faults.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace gpu_emulator {

// Holds the runtime's lock; may be held several times by a thread.
class ApiLock {
  public:
    ApiLock();
    ~ApiLock();
    ApiLock(const ApiLock&) = delete;
    ApiLock& operator=(const ApiLock&) = delete;
    // Lets other threads and processes go on; the calling thread holds the lock.
    static void yield();
};

// What every call returns before it does anything: no device and old drivers if the environment's
// EVENKEEL_EMULATED_GPU_STATE asks for them (no_device, old_driver); the error of a failed kernel
// until its reports are taken or the device is reset.
cudaError_t context_error();
void set_kernel_failed();
void clear_kernel_failed();

// What cudaGetLastError() returns next on this thread; returns its argument.
cudaError_t remember(cudaError_t error);
cudaError_t last_error();
void forget_last_error();

// Runs the body of a runtime function.
template <typename Body>
cudaError_t api_call(Body body) {
    const ApiLock lock;
    const cudaError_t error = context_error();
    return remember(error == cudaSuccess ? body() : error);
}

// Whether the handle names a living stream (stream_api.cpp).
bool is_stream(cudaStream_t stream);

// EVENKEEL_EMULATED_GPUS, and the calling thread's choice among them.
int device_count();
int current_device();
void set_current_device(int chosen);

// Lets all streams do what they can; at_exit: without the help of other processes.
void finish_work(bool at_exit = false);
// Unfinished work is done, and reports fail the process, when it ends.
void watch_exit();

// Counts a call that makes the host wait for the device.
void count_host_wait(const char* call);

// Gives back what the pools of freed memory hold beyond their thresholds, as each wait does
// (memory_api.cpp).
void trim_pools();

// 80 or 90: EVENKEEL_EMULATOR_ARCH.
int emulated_arch();
constexpr int kMultiprocessors = 108;
constexpr int kWarpSize = 32;
constexpr int kMaxThreadsPerBlock = 1024;
constexpr int kMaxThreadsPerMultiprocessor = 2048;
constexpr int kMaxBlocksPerMultiprocessor = 32;
constexpr int kRegistersPerMultiprocessor = 65536;
constexpr std::size_t kSharedPerBlock = 48 << 10;
constexpr std::size_t kSharedPerBlockOptin = 163 << 10;
constexpr std::size_t kSharedPerMultiprocessor = 164 << 10;
constexpr std::size_t kReservedSharedPerBlock = 1 << 10;

}  // namespace gpu_emulator
