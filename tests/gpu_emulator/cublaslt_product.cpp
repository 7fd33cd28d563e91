// The arithmetic is the project's own product on the CPU, on copies of the operands. Every byte read or
// written is checked like those of any copy; the workspace is filled with rubbish, as a GPU's products
// leave it.
#include "tests/gpu_emulator/cublaslt_product.h"

#include <sstream>
#include <utility>

#include "framework/gemm.h"
#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

using evenkeel::DType;
using evenkeel::Tensor;

template <typename... Parts>
cublasStatus_t misuse(const Parts&... parts) {
    std::ostringstream text;
    (text << "misuse: cublasLtMatmul: " << ... << parts);
    report(text.str());
    return CUBLAS_STATUS_INVALID_VALUE;
}

// The columns of a matrix as the rows of a tensor on the host.
bool read(const LayoutState& layout, std::uint64_t address, Tensor& copy) {
    copy = Tensor::uninitialized(
        {static_cast<std::int64_t>(layout.columns), static_cast<std::int64_t>(layout.rows)},
        layout.type == CUDA_R_32F ? DType::kFloat32 : DType::kBFloat16);
    for (std::uint64_t i = 0; i < layout.columns; ++i) {
        if (!copy_to_host(copy.raw() + i * layout.column_bytes(), layout.column(address, i),
                          layout.column_bytes())) {
            return false;
        }
    }
    return true;
}

bool write(const LayoutState& layout, std::uint64_t address, const Tensor& values) {
    for (std::uint64_t i = 0; i < layout.columns; ++i) {
        if (!copy_to_device(layout.column(address, i), values.raw() + i * layout.column_bytes(),
                            layout.column_bytes())) {
            return false;
        }
    }
    return true;
}

bool overlap(std::uint64_t a, std::uint64_t a_end, std::uint64_t b, std::uint64_t b_end) {
    return a < b_end && b < a_end;
}

}  // namespace

cublasStatus_t Problem::check() const {
    for (const LayoutState* layout : {&a, &b, &c, &d}) {
        if (layout->ld < static_cast<std::int64_t>(layout->rows)) {
            return CUBLAS_STATUS_INVALID_VALUE;
        }
    }
    const std::uint64_t m = operation.transpose_a ? a.columns : a.rows;
    const std::uint64_t n = operation.transpose_b ? b.rows : b.columns;
    const std::uint64_t k = operation.transpose_b ? b.columns : b.rows;
    const auto has_shape = [&](const LayoutState& x) { return x.rows == m && x.columns == n; };
    const std::uint64_t k_of_a = operation.transpose_a ? a.rows : a.columns;
    if (k != k_of_a || !has_shape(c) || !has_shape(d)) return CUBLAS_STATUS_INVALID_VALUE;
    if (m == 0 || n == 0 || k == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool allowed =
        a.type == b.type && c.type == d.type && (a.type == CUDA_R_16BF || c.type == CUDA_R_32F);
    return allowed ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

std::uint64_t Problem::hash() const {
    std::uint64_t result = 0x452821e638d01377u;
    const auto mix = [&](std::uint64_t value) {
        result = (result ^ value) * 0x9e3779b97f4a7c15u;
        result ^= result >> 29;
    };
    mix(operation.transpose_a + 2 * operation.transpose_b);
    for (const LayoutState* x : {&a, &b, &c, &d}) {
        mix(static_cast<std::uint64_t>(x->type));
        mix(x->rows);
        mix(x->columns);
        mix(static_cast<std::uint64_t>(x->ld));
    }
    return result;
}

cublasStatus_t check_call(const Product& p, const Algorithm& algorithm) {
    const Problem& problem = p.problem;
    if (algorithm.magic != Algorithm::kMagic || algorithm.problem_hash != problem.hash()) {
        return misuse("the algorithm was not chosen for this product");
    }
    if (p.workspace_bytes < algorithm.workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
    if (p.workspace_bytes > 0 && (p.workspace == 0 || p.workspace % 16 != 0)) {
        return misuse("the workspace is not aligned to 16 bytes");
    }
    const auto check_alignment = [](const char* name, std::uint64_t address,
                                    std::uint64_t alignment) {
        if (address % alignment == 0) return CUBLAS_STATUS_SUCCESS;
        return misuse(name, " is not aligned to ", alignment,
                      " bytes, as the algorithm was promised");
    };
    for (const cublasStatus_t status : {check_alignment("A", p.a, algorithm.a_alignment),
                                        check_alignment("B", p.b, algorithm.b_alignment),
                                        check_alignment("C", p.c, algorithm.c_alignment),
                                        check_alignment("D", p.d, algorithm.d_alignment)}) {
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    const std::uint64_t d_end = problem.d.end(p.d);
    if (overlap(p.d, d_end, p.a, problem.a.end(p.a)) ||
        overlap(p.d, d_end, p.b, problem.b.end(p.b))) {
        return misuse("D overlaps A or B");
    }
    if (p.c == p.d) {
        // In place: the layouts must be the same.
        if (problem.c != problem.d) return CUBLAS_STATUS_INVALID_VALUE;
    } else if (p.beta != 0.0f && overlap(p.d, d_end, p.c, problem.c.end(p.c))) {
        return misuse("D overlaps C without being C");
    }
    const std::uint64_t workspace_end = p.workspace + p.workspace_bytes;
    for (const auto& [begin, end] : {std::pair{p.a, problem.a.end(p.a)},
                                     {p.b, problem.b.end(p.b)},
                                     {p.c, problem.c.end(p.c)},
                                     {p.d, d_end}}) {
        if (overlap(begin, end, p.workspace, workspace_end)) {
            return misuse("the workspace overlaps a matrix");
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

// The transposes of all matrices are row-major: d^T = op(b)^T op(a)^T.
bool multiply(const Product& product) {
    const Problem& problem = product.problem;
    Tensor a, b, c;
    const bool ready = read(problem.a, product.a, a) && read(problem.b, product.b, b) &&
                       (product.beta == 0.0f || read(problem.c, product.c, c)) &&
                       set_on_device(product.workspace, 0xa5, product.workspace_bytes);
    if (!ready) return false;
    const Tensor sum = Tensor::uninitialized(
        {static_cast<std::int64_t>(problem.d.columns), static_cast<std::int64_t>(problem.d.rows)},
        DType::kFloat32);
    evenkeel::gemm(b, a, sum,
                   {.transpose_a = problem.operation.transpose_b,
                    .transpose_b = problem.operation.transpose_a});
    float* const values = sum.data<float>();
    const Tensor before = product.beta == 0.0f ? Tensor() : c.to(DType::kFloat32);
    for (std::int64_t i = 0; i < sum.numel(); ++i) {
        values[i] *= product.alpha;
        if (before.defined()) values[i] += product.beta * before.data<float>()[i];
    }
    return write(problem.d, product.d,
                 problem.d.type == CUDA_R_32F ? sum : sum.to(DType::kBFloat16));
}

}  // namespace gpu_emulator
