#include "tests/gpu_emulator/context.h"

#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

// Reports at the time when a kernel failed; 0 while none has.
std::size_t reports_of_failure = 0;
thread_local cudaError_t last = cudaSuccess;
thread_local int device = 0;
thread_local int lock_depth = 0;
std::map<std::string, std::uint64_t> waits;

std::mutex& api_mutex() {
    // Never destroyed: static destructors of the program still free device memory.
    static auto* const mutex = new std::mutex;
    return *mutex;
}

std::string_view environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

}  // namespace

ApiLock::ApiLock() {
    if (lock_depth++ == 0) api_mutex().lock();
}

ApiLock::~ApiLock() {
    if (--lock_depth == 0) api_mutex().unlock();
}

void ApiLock::yield() {
    api_mutex().unlock();
    std::this_thread::yield();
    api_mutex().lock();
}

cudaError_t context_error() {
    const std::string_view state = environment("EVENKEEL_EMULATED_GPU_STATE");
    if (state == "no_device") return cudaErrorNoDevice;
    if (state == "old_driver") return cudaErrorInsufficientDriver;
    if (!state.empty()) {
        report("EVENKEEL_EMULATED_GPU_STATE: got " + std::string(state) +
               ", want no_device or old_driver");
        return cudaErrorInitializationError;
    }
    if (reports_of_failure > report_count()) reports_of_failure = 0;
    return reports_of_failure > 0 ? cudaErrorLaunchFailure : cudaSuccess;
}

void set_kernel_failed() { reports_of_failure = report_count(); }
void clear_kernel_failed() { reports_of_failure = 0; }

cudaError_t remember(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

cudaError_t last_error() { return last; }
void forget_last_error() { last = cudaSuccess; }

int device_count() {
    const std::string text(environment("EVENKEEL_EMULATED_GPUS"));
    const int count = text.empty() ? 1 : std::atoi(text.c_str());
    if (count >= 1 && count <= 64) return count;
    report("EVENKEEL_EMULATED_GPUS: got " + text + ", want 1 to 64");
    return 1;
}

int current_device() { return device; }
void set_current_device(int chosen) { device = chosen; }

void count_host_wait(const char* call) { ++waits[call]; }

const std::map<std::string, std::uint64_t>& host_wait_calls() { return waits; }

std::uint64_t host_waits() {
    const ApiLock lock;
    std::uint64_t sum = 0;
    for (const auto& [call, count] : waits) sum += count;
    return sum;
}

void reset_host_waits() {
    const ApiLock lock;
    waits.clear();
}

int emulated_arch() {
    const std::string_view arch = environment("EVENKEEL_EMULATOR_ARCH");
    if (arch.empty() || arch == "80") return 80;
    if (arch == "90") return 90;
    report("EVENKEEL_EMULATOR_ARCH: got " + std::string(arch) + ", want 80 or 90");
    return 80;
}

}  // namespace gpu_emulator
