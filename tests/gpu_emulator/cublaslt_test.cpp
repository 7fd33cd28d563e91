// The stand-in for cuBLASLt against the manual: D = alpha op(A) op(B) + beta C, all column-major.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "framework/dtype.h"
#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

using evenkeel::bfloat16;

// A matrix as the manual has it: element (row, column) lies at column * ld + row.
struct Matrix {
    std::uint64_t rows, columns;
    std::int64_t ld;
    cudaDataType type = CUDA_R_32F;

    std::size_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
    std::size_t count() const { return static_cast<std::size_t>(ld) * (columns - 1) + rows; }
    std::size_t bytes() const { return count() * element_bytes(); }
    std::size_t at(std::uint64_t row, std::uint64_t column) const {
        return column * static_cast<std::uint64_t>(ld) + row;
    }
};

// Small integers, so that every sum is exact in fp32 and in bf16's operands.
float value_of(std::size_t index) { return static_cast<float>(index * 7 % 11) - 5.0f; }

class CublasLt : public ::testing::Test {
  protected:
    void SetUp() override {
        ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
        ASSERT_EQ(cudaMalloc(&workspace_, kWorkspace), cudaSuccess);
    }
    void TearDown() override {
        for (void* pointer : memory_) EXPECT_EQ(cudaFree(pointer), cudaSuccess);
        EXPECT_EQ(cudaFree(workspace_), cudaSuccess);
        EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
        EXPECT_EQ(reports(), "");
    }
    static std::string reports() {
        std::string all;
        for (const std::string& text : take_reports()) all += text + '\n';
        return all;
    }
    // Of work that has been asked for, too.
    static void expect_report(const std::string& part) {
        cudaDeviceSynchronize();
        const std::string all = reports();
        EXPECT_NE(all.find(part), std::string::npos) << "got \"" << all << "\", want " << part;
        cudaGetLastError();
    }

    // Device memory with values in the matrix' elements; what lies between columns stays unwritten.
    void* filled(const Matrix& matrix, std::size_t offset = 0) {
        std::byte* const data = static_cast<std::byte*>(empty(matrix, offset));
        for (std::uint64_t column = 0; column < matrix.columns; ++column) {
            for (std::uint64_t row = 0; row < matrix.rows; ++row) {
                const std::size_t at = matrix.at(row, column);
                const float wide = value_of(at);
                const bfloat16 narrow(wide);
                const void* const from = matrix.type == CUDA_R_32F
                                             ? static_cast<const void*>(&wide)
                                             : static_cast<const void*>(&narrow);
                EXPECT_EQ(cudaMemcpy(data + at * matrix.element_bytes(), from,
                                     matrix.element_bytes(), cudaMemcpyHostToDevice),
                          cudaSuccess);
            }
        }
        return data;
    }
    void* empty(const Matrix& matrix, std::size_t offset = 0) {
        void* data = nullptr;
        EXPECT_EQ(cudaMalloc(&data, matrix.bytes() + offset), cudaSuccess);
        memory_.push_back(data);
        return static_cast<std::byte*>(data) + offset;
    }

    struct Call {
        Matrix a, b, c, d;
        cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
        float alpha = 1.0f, beta = 0.0f;
        std::uint32_t alignment = 256;
        std::uint64_t workspace_bytes = kWorkspace;
    };
    struct Descriptors {
        cublasLtMatmulDesc_t operation = nullptr;
        cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
        cublasLtMatmulPreference_t preference = nullptr;

        explicit Descriptors(const Call& call) {
            EXPECT_EQ(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                      CUBLAS_STATUS_SUCCESS);
            EXPECT_EQ(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                     &call.op_a, sizeof call.op_a),
                      CUBLAS_STATUS_SUCCESS);
            EXPECT_EQ(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB,
                                                     &call.op_b, sizeof call.op_b),
                      CUBLAS_STATUS_SUCCESS);
            const auto layout = [](cublasLtMatrixLayout_t* made, const Matrix& m) {
                EXPECT_EQ(cublasLtMatrixLayoutCreate(made, m.type, m.rows, m.columns, m.ld),
                          CUBLAS_STATUS_SUCCESS);
            };
            layout(&a, call.a);
            layout(&b, call.b);
            layout(&c, call.c);
            layout(&d, call.d);
            EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
            const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
                EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                               sizeof value),
                          CUBLAS_STATUS_SUCCESS);
            };
            set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, call.workspace_bytes);
            set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, call.alignment);
            set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, call.alignment);
            set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, call.alignment);
            set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, call.alignment);
        }
        ~Descriptors() {
            EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
            for (auto layout : {a, b, c, d}) {
                EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
            }
            EXPECT_EQ(cublasLtMatmulDescDestroy(operation), CUBLAS_STATUS_SUCCESS);
        }
    };

    cublasStatus_t heuristic(const Descriptors& of, cublasLtMatmulHeuristicResult_t& result) {
        int found = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
            handle_, of.operation, of.a, of.b, of.c, of.d, of.preference, 1, &result, &found);
        EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS ? 1 : 0);
        return status;
    }
    cublasStatus_t matmul(const Call& call,
                          const Descriptors& of,
                          const cublasLtMatmulHeuristicResult_t& chosen,
                          const void* a,
                          const void* b,
                          const void* c,
                          void* d) {
        return cublasLtMatmul(handle_, of.operation, &call.alpha, a, of.a, b, of.b, &call.beta, c,
                              of.c, d, of.d, &chosen.algo, workspace_, chosen.workspaceSize,
                              nullptr);
    }
    // Both steps; in place where c == d.
    cublasStatus_t multiply(
        const Call& call, const void* a, const void* b, const void* c, void* d) {
        const Descriptors of(call);
        cublasLtMatmulHeuristicResult_t chosen{};
        const cublasStatus_t status = heuristic(of, chosen);
        return status == CUBLAS_STATUS_SUCCESS ? matmul(call, of, chosen, a, b, c, d) : status;
    }

    std::vector<float> to_host(const Matrix& matrix, const void* data) {
        std::vector<float> result;
        for (std::uint64_t column = 0; column < matrix.columns; ++column) {
            for (std::uint64_t row = 0; row < matrix.rows; ++row) {
                float wide = 0.0f;
                bfloat16 narrow;
                void* const to = matrix.type == CUDA_R_32F ? static_cast<void*>(&wide)
                                                           : static_cast<void*>(&narrow);
                EXPECT_EQ(cudaMemcpy(to,
                                     static_cast<const std::byte*>(data) +
                                         matrix.at(row, column) * matrix.element_bytes(),
                                     matrix.element_bytes(), cudaMemcpyDeviceToHost),
                          cudaSuccess);
                result.push_back(matrix.type == CUDA_R_32F ? wide : static_cast<float>(narrow));
            }
        }
        return result;
    }
    static std::vector<float> expected(const Call& call) {
        std::vector<float> result;
        for (std::uint64_t n = 0; n < call.d.columns; ++n) {
            for (std::uint64_t m = 0; m < call.d.rows; ++m) {
                const std::uint64_t inner = call.op_a == CUBLAS_OP_N ? call.a.columns : call.a.rows;
                float sum = 0.0f;
                for (std::uint64_t k = 0; k < inner; ++k) {
                    sum += value_of(call.op_a == CUBLAS_OP_N ? call.a.at(m, k) : call.a.at(k, m)) *
                           value_of(call.op_b == CUBLAS_OP_N ? call.b.at(k, n) : call.b.at(n, k));
                }
                sum *= call.alpha;
                if (call.beta != 0.0f) sum += call.beta * value_of(call.c.at(m, n));
                result.push_back(call.d.type == CUDA_R_32F ? sum
                                                           : static_cast<float>(bfloat16(sum)));
            }
        }
        return result;
    }

    static constexpr std::size_t kWorkspace = 1 << 16;
    cublasLtHandle_t handle_ = nullptr;
    void* workspace_ = nullptr;
    std::vector<void*> memory_;
};

TEST_F(CublasLt, MultipliesColumnMajorMatricesOfAnyOperationLeadingDimensionAndType) {
    for (int bits = 0; bits < 4; ++bits) {
        const cublasOperation_t op_a = (bits & 1) != 0 ? CUBLAS_OP_T : CUBLAS_OP_N;
        const cublasOperation_t op_b = (bits & 2) != 0 ? CUBLAS_OP_T : CUBLAS_OP_N;
        for (const auto& [in, out] : {std::pair{CUDA_R_32F, CUDA_R_32F},
                                      {CUDA_R_16BF, CUDA_R_32F},
                                      {CUDA_R_16BF, CUDA_R_16BF}}) {
            Call call{{5, 3, 6, in}, {3, 4, 5, in}, {5, 4, 7, out}, {5, 4, 8, out}};
            if (op_a == CUBLAS_OP_T) std::swap(call.a.rows, call.a.columns);
            if (op_b == CUBLAS_OP_T) std::swap(call.b.rows, call.b.columns);
            call.op_a = op_a;
            call.op_b = op_b;
            call.alpha = 2.0f;
            call.beta = -3.0f;
            void* const d = empty(call.d);
            ASSERT_EQ(multiply(call, filled(call.a), filled(call.b), filled(call.c), d),
                      CUBLAS_STATUS_SUCCESS);
            EXPECT_EQ(to_host(call.d, d), expected(call)) << "operations " << bits;
        }
    }
}

TEST_F(CublasLt, BetaOfZeroReadsNoC) {
    const Matrix square{4, 4, 4};
    const Call call{square, square, square, square};
    void* const d = empty(square);
    ASSERT_EQ(multiply(call, filled(square), filled(square), d, d), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(to_host(square, d), expected(call));
}

TEST_F(CublasLt, AccumulatesInPlace) {
    const Matrix square{4, 4, 9};
    Call call{square, square, square, square};
    call.beta = 1.0f;
    void* const d = filled(square);
    ASSERT_EQ(multiply(call, filled(square), filled(square), d, d), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(to_host(square, d), expected(call));
}

TEST_F(CublasLt, LeavesWhatLiesBetweenColumnsUnwritten) {
    const Matrix square{4, 4, 6};
    void* const d = empty(square);
    ASSERT_EQ(multiply({square, square, square, square}, filled(square), filled(square), d, d),
              CUBLAS_STATUS_SUCCESS);
    float gap = 0.0f;
    cudaMemcpy(&gap, static_cast<float*>(d) + 4, sizeof gap, cudaMemcpyDeviceToHost);
    expect_report("unwritten memory");
}

TEST_F(CublasLt, ReportsUnwrittenOperands) {
    const Matrix square{4, 4, 4};
    Call call{square, square, square, square};
    call.beta = 1.0f;
    void *const a = filled(square), *const d = empty(square);
    EXPECT_EQ(multiply(call, a, filled(square), d, d), CUBLAS_STATUS_SUCCESS);
    expect_report("unwritten memory");
}

TEST_F(CublasLt, ReportsMatricesThatLeaveTheirAllocation) {
    const Matrix square{4, 4, 4}, shorter{4, 3, 4};
    void *const full = filled(square), *const cut = filled(shorter);
    EXPECT_EQ(multiply({square, square, square, square}, full, cut, cut, empty(square)),
              CUBLAS_STATUS_SUCCESS);
    expect_report("out of bounds");
    EXPECT_EQ(
        multiply({square, square, square, square}, full, filled(square), full, empty(shorter)),
        CUBLAS_STATUS_SUCCESS);
    expect_report("out of bounds");
}

TEST_F(CublasLt, AFailedProductShowsAtALaterCall) {
    const Matrix square{4, 4, 4};
    void *const full = filled(square), *const nothing = empty(square);
    EXPECT_EQ(multiply({square, square, square, square}, full, nothing, nothing, nothing),
              CUBLAS_STATUS_INVALID_VALUE);  // D is B
    expect_report("D overlaps A or B");
    void* const d = empty(square);
    EXPECT_EQ(multiply({square, square, square, square}, full, nothing, d, d),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    expect_report("unwritten memory");
}

TEST_F(CublasLt, RefusesShapesThatDoNotFit) {
    const Matrix square{4, 4, 4};
    void* const data = filled(square);
    const auto refused = [&](const Call& call) {
        return multiply(call, data, data, data, empty(square));
    };
    EXPECT_EQ(refused({{4, 3, 4}, square, square, square}), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(refused({square, square, {3, 4, 4}, square}), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(refused({square, square, square, {4, 5, 4}}), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(refused({{4, 4, 3}, square, square, square}), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(refused({{4, 0, 4}, {0, 4, 1}, square, square}), CUBLAS_STATUS_NOT_SUPPORTED);
    const Matrix narrow{4, 4, 4, CUDA_R_16BF};
    EXPECT_EQ(refused({square, narrow, square, square}), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(refused({square, square, narrow, narrow}), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(CublasLt, RefusesAnAlgorithmOfAnotherProduct) {
    const Matrix square{4, 4, 4}, wide{4, 4, 8};
    const Call call{square, square, square, square}, other{wide, square, square, square};
    const Descriptors of(call), of_other(other);
    cublasLtMatmulHeuristicResult_t chosen{};
    ASSERT_EQ(heuristic(of, chosen), CUBLAS_STATUS_SUCCESS);
    void* const d = empty(square);
    EXPECT_EQ(matmul(other, of_other, chosen, filled(wide), filled(square), d, d),
              CUBLAS_STATUS_INVALID_VALUE);
    expect_report("not chosen for this product");
    void* const a = filled(square);
    EXPECT_EQ(cublasLtMatmul(handle_, of.operation, &call.alpha, a, of.a, a, of.b, &call.beta, d,
                             of.c, d, of.d, nullptr, nullptr, 0, nullptr),
              CUBLAS_STATUS_NOT_SUPPORTED);
    expect_report("without an algorithm");
}

TEST_F(CublasLt, HoldsTheCallerToThePromisedAlignment) {
    const Matrix square{4, 4, 4};
    Call call{square, square, square, square};
    void *const a = filled(square, 16), *const b = filled(square), *const d = empty(square);
    EXPECT_EQ(multiply(call, a, b, d, d), CUBLAS_STATUS_INVALID_VALUE);
    expect_report("A is not aligned to 256 bytes");
    call.alignment = 16;
    EXPECT_EQ(multiply(call, a, b, d, d), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(to_host(square, d), expected(call));
    call.alignment = 2;
    EXPECT_EQ(multiply(call, a, b, d, d), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(CublasLt, HoldsTheCallerToTheWorkspace) {
    const Matrix square{4, 4, 4};
    const Call call{square, square, square, square};
    const Descriptors of(call);
    cublasLtMatmulHeuristicResult_t chosen{};
    ASSERT_EQ(heuristic(of, chosen), CUBLAS_STATUS_SUCCESS);
    ASSERT_GT(chosen.workspaceSize, 0u);
    ASSERT_LE(chosen.workspaceSize, kWorkspace);
    void *const a = filled(square), *const d = empty(square);
    const auto with = [&](void* workspace, std::size_t bytes) {
        return cublasLtMatmul(handle_, of.operation, &call.alpha, a, of.a, a, of.b, &call.beta, d,
                              of.c, d, of.d, &chosen.algo, workspace, bytes, nullptr);
    };
    EXPECT_EQ(with(workspace_, chosen.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(with(static_cast<std::byte*>(workspace_) + 8, chosen.workspaceSize),
              CUBLAS_STATUS_INVALID_VALUE);
    expect_report("aligned to 16 bytes");
    EXPECT_EQ(with(a, chosen.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
    expect_report("overlaps a matrix");
    void* const small = empty({2, 2, 2});
    EXPECT_EQ(with(small, chosen.workspaceSize), CUBLAS_STATUS_SUCCESS);
    expect_report("out of bounds");
}

TEST_F(CublasLt, ReportsWhatItCannotDo) {
    cublasLtMatrixLayout_t layout = nullptr;
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16F, 2, 2, 2),
              CUBLAS_STATUS_NOT_SUPPORTED);
    expect_report("type 2 is not emulated");
    ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 2, 2, 2), CUBLAS_STATUS_SUCCESS);
    std::int32_t number = 1;
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &number,
                                               sizeof number),
              CUBLAS_STATUS_SUCCESS);
    number = 3;
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &number,
                                               sizeof number),
              CUBLAS_STATUS_NOT_SUPPORTED);
    expect_report("a batch of 3 is not emulated");
    number = CUBLASLT_ORDER_ROW;
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &number,
                                               sizeof number),
              CUBLAS_STATUS_NOT_SUPPORTED);
    expect_report("order 1 is not emulated");
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &number, 8),
              CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_INVALID_VALUE);
    cublasLtMatmulDesc_t operation = nullptr;
    EXPECT_EQ(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F),
              CUBLAS_STATUS_NOT_SUPPORTED);
    expect_report("compute type");
}

TEST_F(CublasLt, HoldsAHandleToItsDevice) {
    setenv("EVENKEEL_EMULATED_GPUS", "2", 1);
    cudaStream_t other = nullptr;
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    ASSERT_EQ(cudaStreamCreate(&other), cudaSuccess);
    const Matrix square{4, 4, 4};
    const Call call{square, square, square, square};
    void *const a = filled(square), *const d = empty(square);
    EXPECT_EQ(multiply(call, a, a, d, d), CUBLAS_STATUS_INVALID_VALUE);
    expect_report("of another device");
    ASSERT_EQ(cudaStreamDestroy(other), cudaSuccess);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(multiply(call, a, a, d, d), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(to_host(square, d), expected(call));
    unsetenv("EVENKEEL_EMULATED_GPUS");
}

TEST_F(CublasLt, AGraphMultipliesWhatItsOperandsThenHold) {
    const Matrix square{4, 4, 4};
    Call call{square, square, square, square};
    const Descriptors of(call);
    cublasLtMatmulHeuristicResult_t chosen{};
    ASSERT_EQ(heuristic(of, chosen), CUBLAS_STATUS_SUCCESS);
    void *const a = empty(square), *const b = filled(square), *const d = empty(square);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cublasLtMatmul(handle_, of.operation, &call.alpha, a, of.a, b, of.b, &call.beta, d,
                             of.c, d, of.d, &chosen.algo, workspace_, chosen.workspaceSize, stream),
              CUBLAS_STATUS_SUCCESS);
    call.alpha = 5.0f;  // taken by the call
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(a, b, square.bytes(), cudaMemcpyDeviceToDevice, stream), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    call.alpha = 1.0f;
    EXPECT_EQ(to_host(square, d), expected(call));
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CublasLt, NamesItsErrors) {
    EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
    EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_INVALID_VALUE), "CUBLAS_STATUS_INVALID_VALUE");
}

}  // namespace
}  // namespace gpu_emulator
