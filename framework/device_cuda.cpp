#include "framework/device_cuda.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "framework/cuda.h"
#include "framework/error.h"
#include "framework/memory_scope.h"
#include "framework/stream.h"

namespace evenkeel::cuda {
namespace {

constexpr int kLeastMajor = 8;  // sm_80

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

std::string error_text(cudaError_t error) {
    return concat(cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
}

// Errors of a process that cannot use a GPU at all.
bool means_no_gpu(cudaError_t error) {
    switch (error) {
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorInitializationError:
        case cudaErrorSystemDriverMismatch:
        case cudaErrorSystemNotReady:
        case cudaErrorStubLibrary:
            return true;
        default:
            return false;
    }
}

std::string why_no_count(cudaError_t error) {
    if (error == cudaErrorInsufficientDriver) {
        int driver = 0, runtime = 0;
        cudaDriverGetVersion(&driver);
        cudaRuntimeGetVersion(&runtime);
        if (driver == 0) return "no NVIDIA driver is installed or visible here";
        return concat("the NVIDIA driver is too old for this build: it supports CUDA ",
                      version_text(driver), ", want ", version_text(runtime), " or later");
    }
    if (error == cudaErrorNoDevice) {
        const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
        return concat(
            "the NVIDIA driver finds no GPU",
            visible == nullptr ? "" : concat(" (CUDA_VISIBLE_DEVICES is \"", visible, "\")"));
    }
    return concat("the CUDA runtime does not start: ", error_text(error));
}

struct Survey {
    std::vector<int> usable;  // the runtime's numbers of the GPUs that are new enough
    std::string why_not;
};

Survey survey() {
    Survey result;
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        cudaGetLastError();  // forgets it
        result.why_not = why_no_count(error == cudaSuccess ? cudaErrorNoDevice : error);
        return result;
    }
    for (int device = 0; device < count; ++device) {
        int major = 0, minor = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        if (major >= kLeastMajor) {
            result.usable.push_back(device);
        } else if (result.why_not.empty()) {
            result.why_not =
                concat("the GPU is too old: device ", device, " has compute capability ", major,
                       ".", minor, ", want ", kLeastMajor, ".0 or higher");
        }
    }
    if (!result.usable.empty()) result.why_not.clear();
    return result;
}

int current_device(const char* op) {
    int device = 0;
    check(cudaGetDevice(&device), op, "cudaGetDevice");
    return device;
}

// The kernel's name as the source spells it.
std::string name_of_kernel(const void* kernel) {
    const char* mangled = nullptr;
    if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || mangled == nullptr) {
        cudaGetLastError();
        return "unknown kernel";
    }
    int status = 0;
    char* plain = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    const std::string name = status == 0 && plain != nullptr ? plain : mangled;
    std::free(plain);
    return name;
}

std::string to_string(const dim3& size) {
    return concat("[", size.x, ", ", size.y, ", ", size.z, "]");
}

constexpr std::size_t kSharedWithoutAsking = 48 << 10;

// Kernels may use more than 48 KiB of shared memory, their own variables included, only after being
// told so, on each device.
void allow_shared_memory(const char* op, const void* kernel, std::size_t bytes) {
    static std::mutex mutex;
    static std::map<std::pair<int, const void*>, std::size_t> allowed;
    const int device = current_device(op);
    const std::lock_guard lock(mutex);
    auto known = allowed.find({device, kernel});
    if (known == allowed.end()) {
        cudaFuncAttributes attributes{};
        check(cudaFuncGetAttributes(&attributes, kernel), op, "cudaFuncGetAttributes");
        const std::size_t own = std::min(attributes.sharedSizeBytes, kSharedWithoutAsking);
        known = allowed.insert({{device, kernel}, kSharedWithoutAsking - own}).first;
        // A hint: the first-level cache gets what is left, so that as many blocks run side by side as registers allow.
        if (own + bytes >= kSharedWithoutAsking / 2 &&
            cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared) != cudaSuccess) {
            cudaGetLastError();
        }
    }
    std::size_t& most = known->second;
    if (bytes <= most) return;
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error == cudaErrorInvalidValue) {
        int limit = 0;
        cudaGetLastError();
        check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), op,
              "cudaDeviceGetAttribute");
        throw_error(ErrorCode::kCuda, op,
                    concat("shared memory: got ", bytes, " bytes for ", name_of_kernel(kernel),
                           ", want at most the ", limit, " of this GPU"));
    }
    check(error, op, "cudaFuncSetAttribute");
    most = bytes;
}

}  // namespace

int device_count() { return static_cast<int>(survey().usable.size()); }

std::string why_not() { return survey().why_not; }

GpuDescription describe() {
    constexpr const char* kOp = "describe_gpu";
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, current_device(kOp)), kOp,
          "cudaGetDeviceProperties");
    int supported = 0;
    check(cudaDriverGetVersion(&supported), kOp, "cudaDriverGetVersion");
    std::string driver = concat("CUDA ", version_text(supported));
    std::string version;
    if (std::ifstream("/sys/module/nvidia/version") >> version) {
        driver = concat(version, " (", driver, ")");
    }
    std::string uuid;
    for (const char byte : properties.uuid.bytes) {
        constexpr const char* kDigits = "0123456789abcdef";
        const auto bits = static_cast<unsigned char>(byte);
        uuid += {kDigits[bits >> 4], kDigits[bits & 15]};
    }
    return {properties.name, driver, properties.multiProcessorCount, uuid};
}

void use_gpu(int index) {
    const std::vector<int> usable = survey().usable;
    EVENKEEL_CHECK(0 <= index && index < static_cast<int>(usable.size()), "use_gpu", "index: got ",
                   index, ", want one of ", usable.size(), " usable GPUs");
    check(cudaSetDevice(usable[static_cast<std::size_t>(index)]), "use_gpu", "cudaSetDevice");
}

void check(cudaError_t error, const char* op, const char* call) {
    if (error == cudaSuccess) [[likely]]
        return;
    cudaGetLastError();  // reported here, so that no later call reports it again
    if (means_no_gpu(error)) {
        const std::string why = why_not();
        EVENKEEL_CHECK_CODE(why.empty(), ErrorCode::kCuda, op, "no usable GPU: ", why);
    }
    const std::string text = concat("[", op, "] ", call, ": ", error_text(error));
    if (error == cudaErrorMemoryAllocation) throw OutOfMemory(ErrorCode::kCuda, text);
    throw Error(ErrorCode::kCuda, text);
}

dim3 grid_size(const char* op, std::int64_t x, std::int64_t y, std::int64_t z) {
    constexpr std::int64_t kMostX = 0x7fffffff, kMostYZ = 65535;
    EVENKEEL_CHECK(x >= 0 && y >= 0 && z >= 0 && x <= kMostX && y <= kMostYZ && z <= kMostYZ, op,
                   "grid: got [", x, ", ", y, ", ", z, "] blocks, want at most [", kMostX, ", ",
                   kMostYZ, ", ", kMostYZ, "]");
    return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

void launch_raw(const char* op, const void* kernel, const LaunchShape& shape, void** arguments) {
    const dim3 grid = grid_size(op, shape.grid.x, shape.grid.y, shape.grid.z);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    if (shape.shared_bytes > 0) allow_shared_memory(op, kernel, shape.shared_bytes);
    const cudaError_t error = cudaLaunchKernel(kernel, grid, shape.block, arguments,
                                               shape.shared_bytes, Stream::current().handle());
    if (error == cudaSuccess) [[likely]]
        return;
    const std::string call =
        concat("launch of ", name_of_kernel(kernel), ", grid ", to_string(grid), ", block ",
               to_string(shape.block), ", ", shape.shared_bytes, " bytes of shared memory");
    check(error, op, call.c_str());
}

}  // namespace evenkeel::cuda
