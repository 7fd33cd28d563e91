// The part of cuBLASLt that the project calls: products of bf16 or fp32 with sums in fp32, column-major,
// one at a time. What cuBLASLt would refuse is refused with the status of its manual; what it could do, but
// this cannot, is reported.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <sstream>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/cublaslt_product.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/queue.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {
namespace {

struct ContextState {
    int device = 0;
};

struct PreferenceState {
    std::uint64_t workspace_bytes = 0;
    std::uint32_t a_alignment = 256, b_alignment = 256, c_alignment = 256, d_alignment = 256;
};

// The objects that are alive, by handle.
template <typename State>
std::set<const void*>& living() {
    // Never destroyed: static destructors of the program may still use them.
    static auto* const only = new std::set<const void*>;
    return *only;
}

template <typename State, typename Handle>
State* state_of(Handle handle) {
    return living<State>().count(handle) == 0 ? nullptr : reinterpret_cast<State*>(handle);
}

template <typename State, typename Handle>
cublasStatus_t create(Handle* handle, const State& state) {
    if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    auto* const made = new State(state);
    living<State>().insert(made);
    *handle = reinterpret_cast<Handle>(made);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename State, typename Handle>
cublasStatus_t destroy(Handle handle) {
    const ApiLock lock;
    State* const state = state_of<State>(handle);
    if (state == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    living<State>().erase(handle);
    delete state;
    return CUBLAS_STATUS_SUCCESS;
}

template <typename... Parts>
cublasStatus_t not_emulated(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    report(text.str() + " is not emulated");
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

template <typename Value>
bool take(Value& value, const void* from, std::size_t bytes) {
    if (from == nullptr || bytes != sizeof value) return false;
    std::memcpy(&value, from, bytes);
    return true;
}

bool problem_of(Problem& problem,
                cublasLtMatmulDesc_t operation,
                cublasLtMatrixLayout_t a,
                cublasLtMatrixLayout_t b,
                cublasLtMatrixLayout_t c,
                cublasLtMatrixLayout_t d) {
    const auto* const o = state_of<OperationState>(operation);
    const auto* const layout_a = state_of<LayoutState>(a);
    const auto* const layout_b = state_of<LayoutState>(b);
    const auto* const layout_c = state_of<LayoutState>(c);
    const auto* const layout_d = state_of<LayoutState>(d);
    if (o == nullptr || layout_a == nullptr || layout_b == nullptr || layout_c == nullptr ||
        layout_d == nullptr) {
        return false;
    }
    problem = {*o, *layout_a, *layout_b, *layout_c, *layout_d};
    return true;
}

struct StatusText {
    cublasStatus_t status;
    const char *name, *text;
};
constexpr StatusText kStatusTexts[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "out of memory"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE", "invalid value"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "execution failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "not supported"},
};

}  // namespace
}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t status) {
    for (const StatusText& known : kStatusTexts) {
        if (known.status == status) return known.name;
    }
    return "unknown";
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
    for (const StatusText& known : kStatusTexts) {
        if (known.status == status) return known.text;
    }
    return "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    const ApiLock lock;
    if (context_error() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    return create(handle, ContextState{current_device()});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy<ContextState>(handle); }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                          cudaDataType type,
                                          uint64_t rows,
                                          uint64_t columns,
                                          int64_t ld) {
    const ApiLock lock;
    if (type != CUDA_R_32F && type != CUDA_R_16BF) {
        return not_emulated("cublasLtMatrixLayoutCreate: type ", static_cast<int>(type));
    }
    return create(layout, LayoutState{type, rows, columns, ld});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return destroy<LayoutState>(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value,
                                                size_t bytes) {
    const ApiLock lock;
    if (state_of<LayoutState>(layout) == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    std::int32_t number = 0;
    if (attribute != CUBLASLT_MATRIX_LAYOUT_ORDER &&
        attribute != CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
        return not_emulated("cublasLtMatrixLayoutSetAttribute: attribute ",
                            static_cast<int>(attribute));
    }
    if (!take(number, value, bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_ORDER) {
        if (number == CUBLASLT_ORDER_COL) return CUBLAS_STATUS_SUCCESS;
        return not_emulated("cublasLtMatrixLayoutSetAttribute: order ", number);
    }
    if (number == 1) return CUBLAS_STATUS_SUCCESS;
    return not_emulated("cublasLtMatrixLayoutSetAttribute: a batch of ", number);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
    const ApiLock lock;
    if (compute_type != CUBLAS_COMPUTE_32F || scale_type != CUDA_R_32F) {
        return not_emulated("cublasLtMatmulDescCreate: compute type ",
                            static_cast<int>(compute_type), " with scale type ",
                            static_cast<int>(scale_type));
    }
    return create(operation, OperationState{});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
    return destroy<OperationState>(operation);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value,
                                              size_t bytes) {
    const ApiLock lock;
    auto* const state = state_of<OperationState>(operation);
    if (state == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    if (attribute != CUBLASLT_MATMUL_DESC_TRANSA && attribute != CUBLASLT_MATMUL_DESC_TRANSB) {
        return not_emulated("cublasLtMatmulDescSetAttribute: attribute ",
                            static_cast<int>(attribute));
    }
    std::int32_t number = 0;
    if (!take(number, value, bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    if (number != CUBLAS_OP_N && number != CUBLAS_OP_T) {
        return not_emulated("cublasLtMatmulDescSetAttribute: operation ", number);
    }
    (attribute == CUBLASLT_MATMUL_DESC_TRANSA ? state->transpose_a : state->transpose_b) =
        number == CUBLAS_OP_T;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    const ApiLock lock;
    return create(preference, PreferenceState{});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy<PreferenceState>(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value,
                                                    size_t bytes) {
    const ApiLock lock;
    auto* const state = state_of<PreferenceState>(preference);
    if (state == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    std::uint32_t scheme = 0;  // sums are never split here
    bool taken = false;
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            taken = take(state->workspace_bytes, value, bytes);
            break;
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            taken = take(scheme, value, bytes);
            break;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            taken = take(state->a_alignment, value, bytes);
            break;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            taken = take(state->b_alignment, value, bytes);
            break;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            taken = take(state->c_alignment, value, bytes);
            break;
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            taken = take(state->d_alignment, value, bytes);
            break;
        default:
            return not_emulated("cublasLtMatmulPreferenceSetAttribute: attribute ",
                                static_cast<int>(attribute));
    }
    return taken ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference,
                                              int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
    const ApiLock lock;
    if (state_of<ContextState>(handle) == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    Problem problem{};
    const auto* const wants = state_of<PreferenceState>(preference);
    if (!problem_of(problem, operation, a, b, c, d) || wants == nullptr || requested <= 0 ||
        results == nullptr || returned == nullptr) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *returned = 0;
    if (const cublasStatus_t status = problem.check(); status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    if (wants->a_alignment < problem.a.element_bytes() ||
        wants->b_alignment < problem.b.element_bytes() ||
        wants->c_alignment < problem.c.element_bytes() ||
        wants->d_alignment < problem.d.element_bytes()) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    Algorithm algorithm;
    algorithm.problem_hash = problem.hash();
    // As much as it pleases, so that a caller who gives less than what it was told is found out.
    algorithm.workspace_bytes =
        std::min(wants->workspace_bytes, algorithm.problem_hash % 64 * 1024);
    algorithm.a_alignment = wants->a_alignment;
    algorithm.b_alignment = wants->b_alignment;
    algorithm.c_alignment = wants->c_alignment;
    algorithm.d_alignment = wants->d_alignment;
    results[0] = {};
    results[0].algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
    results[0].workspaceSize = algorithm.workspace_bytes;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1.0f;
    *returned = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                              cublasLtMatmulDesc_t operation,
                              const void* alpha,
                              const void* a,
                              cublasLtMatrixLayout_t a_layout,
                              const void* b,
                              cublasLtMatrixLayout_t b_layout,
                              const void* beta,
                              const void* c,
                              cublasLtMatrixLayout_t c_layout,
                              void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo,
                              void* workspace,
                              size_t workspace_bytes,
                              cudaStream_t stream) {
    const ApiLock lock;
    const auto* const context = state_of<ContextState>(handle);
    if (context == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (context_error() != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    Product product;
    if (!problem_of(product.problem, operation, a_layout, b_layout, c_layout, d_layout) ||
        alpha == nullptr || beta == nullptr || !is_stream(stream)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (algo == nullptr) return not_emulated("cublasLtMatmul: a call without an algorithm");
    if (const cublasStatus_t status = product.problem.check(); status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    if (context->device != current_device() || context->device != find_stream(stream)->device) {
        report(
            "misuse: cublasLtMatmul: the handle is of another device than the stream or the "
            "thread");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const auto address_of = [](const void* p) { return reinterpret_cast<std::uint64_t>(p); };
    if (is_device_address(address_of(alpha)) || is_device_address(address_of(beta))) {
        return not_emulated("cublasLtMatmul: alpha and beta in device memory");
    }
    std::memcpy(&product.alpha, alpha, sizeof product.alpha);
    std::memcpy(&product.beta, beta, sizeof product.beta);
    product.a = address_of(a);
    product.b = address_of(b);
    product.c = address_of(c);
    product.d = address_of(d);
    product.workspace = address_of(workspace);
    product.workspace_bytes = workspace_bytes;
    const auto algorithm = std::bit_cast<Algorithm>(*algo);
    if (const cublasStatus_t status = check_call(product, algorithm);
        status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    // As on a GPU, what goes wrong in the product shows at a later call.
    const cudaError_t error = enqueue(stream, "cublasLtMatmul", [product]() -> Advance {
        return [product] {
            if (!multiply(product)) set_kernel_failed();
            return true;
        };
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
