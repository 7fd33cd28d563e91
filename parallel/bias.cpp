#include "parallel/bias.h"

#include "parallel/bias_backends.h"

namespace evenkeel {
namespace {

// [.., O] as [N, O].
Tensor checked_rows(const char* op, const char* name, const Tensor& x, const Tensor& bias) {
    EVENKEEL_CHECK(x.defined() && x.rank() >= 2, op, name, ": got ",
                   x.defined() ? to_string(x.shape()) : "no tensor", ", want [.., O]");
    EVENKEEL_CHECK(x.dtype() == DType::kFloat32 || x.dtype() == DType::kBFloat16, op, name,
                   ": got ", name_of(x.dtype()), ", want fp32 or bf16");
    const std::int64_t O = x.size(-1);
    EVENKEEL_CHECK(x.stride(-1) == 1 || O <= 1, op, name, ": got stride ", x.stride(-1),
                   " between outputs, want 1");
    check_shape(op, "bias", bias, {O});
    check_dtype(op, "bias", bias, DType::kFloat32);
    EVENKEEL_CHECK(bias.is_contiguous(), op, "bias: want a contiguous tensor");
    EVENKEEL_CHECK(bias.device() == x.device(), op, "bias: got ", name_of(bias.device()), ", want ",
                   name_of(x.device()));
    return x.view({O == 0 ? 0 : x.numel() / O, O});
}

}  // namespace

void add_bias(const Tensor& x, const Tensor& bias) {
    const Tensor rows = checked_rows("add_bias", "x", x, bias);
    if (rows.numel() == 0) return;
    switch (rows.device()) {
        case Device::kCpu:
            return cpu::add_bias(rows, bias);
        case Device::kCuda:
            return cuda::add_bias(rows, bias);
    }
}

void add_bias_gradient(const Tensor& dy, const Tensor& grad) {
    const Tensor rows = checked_rows("add_bias_gradient", "dy", dy, grad);
    if (rows.numel() == 0) return;
    switch (rows.device()) {
        case Device::kCpu:
            return cpu::add_bias_gradient(rows, grad);
        case Device::kCuda:
            return cuda::add_bias_gradient(rows, grad);
    }
}

}  // namespace evenkeel
