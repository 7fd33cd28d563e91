#include "framework/gemm.h"

#include "framework/gemm_cpu.h"
#include "framework/gemm_cuda.h"

namespace evenkeel {
namespace {

void check_matrix(const char* name, const Tensor& matrix) {
    EVENKEEL_CHECK(matrix.defined(), "gemm", name, ": got no tensor");
    EVENKEEL_CHECK(matrix.rank() == 2, "gemm", name, ": got shape ", to_string(matrix.shape()),
                   ", want a matrix");
    EVENKEEL_CHECK(matrix.dtype() == DType::kFloat32 || matrix.dtype() == DType::kBFloat16, "gemm",
                   name, ": got ", name_of(matrix.dtype()), ", want fp32 or bf16");
    EVENKEEL_CHECK(matrix.size(1) <= 1 || matrix.stride(1) == 1, "gemm", name, ": got strides ",
                   to_string(matrix.strides()), ", want contiguous rows");
}

}  // namespace

void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& options) {
    check_matrix("a", a);
    check_matrix("b", b);
    check_matrix("c", c);
    const std::int64_t m = a.size(options.transpose_a ? 1 : 0);
    const std::int64_t k = a.size(options.transpose_a ? 0 : 1);
    const std::int64_t n = b.size(options.transpose_b ? 0 : 1);
    check_shape("gemm", "b", b, options.transpose_b ? Shape{n, k} : Shape{k, n});
    check_shape("gemm", "c", c, {m, n});
    EVENKEEL_CHECK(a.device() == c.device() && b.device() == c.device(), "gemm",
                   "device: got a on ", name_of(a.device()), ", b on ", name_of(b.device()),
                   ", c on ", name_of(c.device()), ", want one device");
    EVENKEEL_CHECK(a.dtype() == b.dtype(), "gemm", "b: got ", name_of(b.dtype()), ", want ",
                   name_of(a.dtype()), " as a has");
    EVENKEEL_CHECK(!options.accumulate || c.dtype() == DType::kFloat32, "gemm", "c: got ",
                   name_of(c.dtype()), ", want fp32 to accumulate into");
    if (m == 0 || n == 0) return;
    if (k == 0) {
        if (!options.accumulate) c.zero();
        return;
    }
    switch (c.device()) {
        case Device::kCpu:
            return cpu::gemm(a, b, c, options);
        case Device::kCuda:
            return cuda::gemm(a, b, c, options);
    }
}

}  // namespace evenkeel
