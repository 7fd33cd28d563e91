#include "tests/gpu_emulator/context.h"

#include <cstdlib>
#include <string_view>

#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

// Reports at the time when a kernel failed; 0 while none has.
std::size_t reports_of_failure = 0;
thread_local cudaError_t last = cudaSuccess;

std::string_view environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

}  // namespace

std::recursive_mutex& api_mutex() {
    // Never destroyed: static destructors of the program still free device memory.
    static auto* const mutex = new std::recursive_mutex;
    return *mutex;
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

int emulated_arch() {
    const std::string_view arch = environment("EVENKEEL_EMULATOR_ARCH");
    if (arch.empty() || arch == "80") return 80;
    if (arch == "90") return 90;
    report("EVENKEEL_EMULATOR_ARCH: got " + std::string(arch) + ", want 80 or 90");
    return 80;
}

}  // namespace gpu_emulator
