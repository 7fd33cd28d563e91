// Products on CUDA, by cuBLASLt: fp32 sums on every way, no TF32. cuBLASLt's matrices are column-major, so
// what it reads in a row-major matrix is its transpose, and what it computes here is
// c^T = op(b)^T op(a)^T.
//
// What a product needs beside its operands is kept: an algorithm for each shape and alignment, and one
// workspace a stream, which also makes the results repeat (products that run side by side would otherwise
// share cuBLASLt's own). So only the first product of a shape, or on a stream, costs more than a launch.
//
// No layer has a bias, so there is none here; cuBLASLt has an epilogue for it.
#include "framework/gemm_cuda.h"

#include <cublasLt.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "framework/cuda.h"
#include "framework/device_cuda.h"
#include "framework/memory_scope.h"
#include "framework/stream.h"

namespace evenkeel::cuda {
namespace {

constexpr const char* kOp = "gemm";
constexpr std::size_t kCachedPlans = 1024;  // a training run needs about 50
constexpr std::uint64_t kBestAlignment = 256;

void check(cublasStatus_t status, const char* call) {
    if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
        return;
    throw_error(ErrorCode::kCuda, kOp,
                concat(call, ": ", cublasLtGetStatusName(status), " (",
                       cublasLtGetStatusString(status), ")"));
}

// Owns a cuBLASLt descriptor.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
struct Destroyer {
    using pointer = Handle;
    void operator()(Handle handle) const { kDestroy(handle); }
};
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
using Descriptor = std::unique_ptr<Handle, Destroyer<Handle, kDestroy>>;
using Layout = Descriptor<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Operation = Descriptor<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Descriptor<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// A row-major matrix as cuBLASLt sees it.
struct Matrix {
    std::uint64_t rows, columns;
    std::int64_t stride;
    DType dtype;
    std::uint64_t alignment;  // of its first element, in bytes

    explicit Matrix(const Tensor& tensor)
        : rows(static_cast<std::uint64_t>(tensor.size(1))),
          columns(static_cast<std::uint64_t>(tensor.size(0))),
          stride(tensor.size(0) == 1 ? tensor.size(1) : tensor.stride(0)),
          dtype(tensor.dtype()) {
        const auto address = reinterpret_cast<std::uintptr_t>(tensor.raw());
        alignment = std::min<std::uint64_t>(address & (~address + 1), kBestAlignment);
    }
    Layout layout() const {
        cublasLtMatrixLayout_t made = nullptr;
        const cudaDataType type = dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
        check(cublasLtMatrixLayoutCreate(&made, type, rows, columns, stride),
              "cublasLtMatrixLayoutCreate");
        return Layout(made);
    }
};

// Products of one shape on one device.
struct Plan {
    Operation operation;
    Layout a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    std::size_t workspace_bytes;
};

struct Workspace {
    void* data = nullptr;
    std::size_t bytes = 0;
};

using Key = std::array<std::int64_t, 13>;

struct State {
    std::mutex mutex;
    std::map<int, cublasLtHandle_t> handles;  // by device
    std::map<Key, std::shared_ptr<const Plan>> plans;
    std::map<std::pair<int, cudaStream_t>, Workspace> workspaces;
};

State& state() {
    // Never destroyed: streams and cuBLASLt may be gone already when a process ends.
    static auto* const only = new State;
    return *only;
}

int current_device() {
    int device = 0;
    cuda::check(cudaGetDevice(&device), kOp, "cudaGetDevice");
    return device;
}

// The size that NVIDIA advises for each generation.
std::size_t workspace_size(int device) {
    int major = 0;
    cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), kOp,
                "cudaDeviceGetAttribute");
    return std::size_t{major >= 9 ? 32u : 4u} << 20;
}

cublasLtHandle_t handle_of(State& s, int device) {
    cublasLtHandle_t& handle = s.handles[device];
    if (handle == nullptr) check(cublasLtCreate(&handle), "cublasLtCreate");
    return handle;
}

// Memory that a captured stream gives out belongs to the graph, and a kernel's first use may not be allowed
// there.
void check_not_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda::check(cudaStreamIsCapturing(stream, &status), kOp, "cudaStreamIsCapturing");
    EVENKEEL_CHECK(status == cudaStreamCaptureStatusNone, kOp,
                   "graph: got a product that has not run before it is captured, want one of the "
                   "same shapes run on the same stream first");
}

Workspace workspace_of(State& s, int device, cudaStream_t stream) {
    Workspace& workspace = s.workspaces[{device, stream}];
    if (workspace.data == nullptr) {
        check_not_captured(stream);
        const MemoryScope scope("cuBLASLt's workspace");
        const std::size_t bytes = workspace_size(device);
        workspace = {allocate(bytes).data, bytes};
    }
    return workspace;
}

Operation make_operation(const GemmOptions& options) {
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    Operation operation(made);
    const auto transpose = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
        const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
        check(cublasLtMatmulDescSetAttribute(made, attribute, &value, sizeof value),
              "cublasLtMatmulDescSetAttribute");
    };
    transpose(CUBLASLT_MATMUL_DESC_TRANSA, options.transpose_b);
    transpose(CUBLASLT_MATMUL_DESC_TRANSB, options.transpose_a);
    return operation;
}

Preference make_preference(const Matrix& a, const Matrix& b, const Matrix& c, std::size_t bytes) {
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    Preference preference(made);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
        check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value),
              "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{bytes});
    // A sum that is split is put together in fp32, never in a bf16 result.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(a.alignment));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(b.alignment));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(c.alignment));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(c.alignment));
    return preference;
}

std::string describe(const Matrix& m) {
    return concat(name_of(m.dtype), " [", m.columns, ", ", m.rows, "] stride ", m.stride,
                  " aligned to ", m.alignment);
}

// a and b as cuBLASLt takes them: the caller's b and a.
std::shared_ptr<const Plan> make_plan(cublasLtHandle_t handle,
                                      const Matrix& a,
                                      const Matrix& b,
                                      const Matrix& c,
                                      const GemmOptions& options,
                                      std::size_t workspace_bytes) {
    Plan plan{make_operation(options), a.layout(), b.layout(), c.layout(), {}, 0};
    const Preference preference = make_preference(a, b, c, workspace_bytes);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, plan.operation.get(), plan.a.get(), plan.b.get(), plan.c.get(), plan.c.get(),
        preference.get(), 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
        throw_error(ErrorCode::kCuda, kOp,
                    concat("cuBLASLt has no algorithm for a ", describe(b),
                           options.transpose_a ? " transposed" : "", ", b ", describe(a),
                           options.transpose_b ? " transposed" : "", ", c ", describe(c)));
    }
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    check(result.state, "cublasLtMatmulAlgoGetHeuristic");
    plan.algorithm = result.algo;
    plan.workspace_bytes = result.workspaceSize;
    return std::make_shared<const Plan>(std::move(plan));
}

Key key_of(
    int device, const Matrix& a, const Matrix& b, const Matrix& c, const GemmOptions& options) {
    const auto types = static_cast<std::int64_t>(a.dtype) + 16 * static_cast<std::int64_t>(c.dtype);
    const auto number = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
    return {device,
            types,
            options.transpose_a + 2 * options.transpose_b,
            number(a.rows),
            number(a.columns),
            a.stride,
            number(a.alignment),
            number(b.columns),
            b.stride,
            number(b.alignment),
            number(c.columns),
            c.stride,
            number(c.alignment)};
}

void multiply(const Tensor& a_tensor,
              const Tensor& b_tensor,
              const Tensor& c_tensor,
              const GemmOptions& options) {
    const Matrix a(b_tensor), b(a_tensor), c(c_tensor);
    const cudaStream_t stream = Stream::current().handle();
    const int device = current_device();
    const Key key = key_of(device, a, b, c, options);
    State& s = state();
    std::unique_lock lock(s.mutex);
    const cublasLtHandle_t handle = handle_of(s, device);
    const Workspace workspace = workspace_of(s, device, stream);
    std::shared_ptr<const Plan>& cached = s.plans[key];
    if (cached == nullptr) {
        check_not_captured(stream);
        cached = make_plan(handle, a, b, c, options, workspace.bytes);
    }
    const std::shared_ptr<const Plan> plan = cached;
    if (s.plans.size() > kCachedPlans) s.plans.clear();
    lock.unlock();

    const float alpha = 1.0f, beta = options.accumulate ? 1.0f : 0.0f;
    check(cublasLtMatmul(handle, plan->operation.get(), &alpha, b_tensor.raw(), plan->a.get(),
                         a_tensor.raw(), plan->b.get(), &beta, c_tensor.raw(), plan->c.get(),
                         c_tensor.raw(), plan->c.get(), &plan->algorithm, workspace.data,
                         plan->workspace_bytes, stream),
          "cublasLtMatmul");
}

}  // namespace

void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& options) {
    if (a.dtype() != DType::kFloat32 || c.dtype() == DType::kFloat32) {
        return multiply(a, b, c, options);
    }
    // cuBLASLt writes products of fp32 as fp32 only.
    const Tensor wide = Tensor::uninitialized(c.shape(), DType::kFloat32, Device::kCuda);
    multiply(a, b, wide, options);
    c.copy_from(wide);
}

void release_gemm_workspace(CUstream_st* stream) noexcept {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    for (auto it = s.workspaces.begin(); it != s.workspaces.end();) {
        if (it->first.second != stream) {
            ++it;
            continue;
        }
        // As for a buffer, there is no one to tell an error to.
        cudaFreeAsync(it->second.data, stream);
        it = s.workspaces.erase(it);
    }
}

}  // namespace evenkeel::cuda
