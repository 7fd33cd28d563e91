#include "model/elementwise.h"

#include "model/elementwise_cpu.h"

namespace evenkeel {
namespace {

// A contiguous fp32 or bf16 tensor.
void check_operand(const char* op, const char* name, const Tensor& tensor) {
    EVENKEEL_CHECK(tensor.defined() && tensor.rank() >= 1, op, name,
                   ": got no tensor, want one of rank 1 or more");
    EVENKEEL_CHECK(tensor.dtype() == DType::kFloat32 || tensor.dtype() == DType::kBFloat16, op,
                   name, ": got ", name_of(tensor.dtype()), ", want fp32 or bf16");
    EVENKEEL_CHECK(tensor.is_contiguous(), op, name, ": want a contiguous tensor");
}

void check_like(const char* op, const char* name, const Tensor& tensor, const Tensor& like) {
    check_shape(op, name, tensor, like.shape());
    check_dtype(op, name, tensor, like.dtype());
    check_operand(op, name, tensor);
}

void check_norm(const char* op, const Tensor& x, const Tensor& gain, const Tensor& rstd) {
    check_operand(op, "x", x);
    const std::int64_t C = x.size(-1);
    check_shape(op, "gain", gain, {C});
    check_operand(op, "gain", gain);
    EVENKEEL_CHECK(gain.dtype() == DType::kFloat32 || gain.dtype() == x.dtype(), op, "gain: got ",
                   name_of(gain.dtype()), ", want fp32 or the type of x");
    check_shape(op, "rstd", rstd, {C == 0 ? rstd.numel() : x.numel() / C});
    check_dtype(op, "rstd", rstd, DType::kFloat32);
    EVENKEEL_CHECK(rstd.is_contiguous(), op, "rstd: want a contiguous tensor");
}

// The shape of y [.., F] for gate_up [.., 2F].
Shape halved(const char* op, const Tensor& gate_up) {
    check_operand(op, "gate_up", gate_up);
    EVENKEEL_CHECK(gate_up.size(-1) % 2 == 0, op, "gate_up: got width ", gate_up.size(-1),
                   ", want gate and up of one width");
    Shape shape = gate_up.shape();
    shape.back() /= 2;
    return shape;
}

// True when the operation is to run; there is no other device yet.
bool on_cpu(const char* op, const Tensor& tensor) {
    EVENKEEL_CHECK_CODE(tensor.device() == Device::kCpu, ErrorCode::kNotBuilt, op,
                        "device: got cuda, want cpu");
    return tensor.numel() > 0;
}

}  // namespace

void rms_norm_forward(
    const Tensor& x, const Tensor& gain, double eps, const Tensor& y, const Tensor& rstd) {
    constexpr const char* kOp = "rms_norm_forward";
    check_norm(kOp, x, gain, rstd);
    check_like(kOp, "y", y, x);
    EVENKEEL_CHECK(eps >= 0.0, kOp, "eps: got ", eps, ", want 0 or more");
    if (on_cpu(kOp, x)) cpu::rms_norm_forward(x, gain, eps, y, rstd);
}

void rms_norm_backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& gain,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx,
                       const Tensor& dgain) {
    constexpr const char* kOp = "rms_norm_backward";
    check_norm(kOp, x, gain, rstd);
    check_like(kOp, "dy", dy, x);
    check_like(kOp, "dx", dx, x);
    check_shape(kOp, "dgain", dgain, gain.shape());
    check_dtype(kOp, "dgain", dgain, DType::kFloat32);
    EVENKEEL_CHECK(dgain.is_contiguous(), kOp, "dgain: want a contiguous tensor");
    if (on_cpu(kOp, x)) cpu::rms_norm_backward(dy, x, gain, rstd, accumulate, dx, dgain);
}

void swiglu_forward(const Tensor& gate_up, const Tensor& y) {
    constexpr const char* kOp = "swiglu_forward";
    check_shape(kOp, "y", y, halved(kOp, gate_up));
    check_dtype(kOp, "y", y, gate_up.dtype());
    check_operand(kOp, "y", y);
    if (on_cpu(kOp, y)) cpu::swiglu_forward(gate_up, y);
}

void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    constexpr const char* kOp = "swiglu_backward";
    check_shape(kOp, "dy", dy, halved(kOp, gate_up));
    check_dtype(kOp, "dy", dy, gate_up.dtype());
    check_operand(kOp, "dy", dy);
    check_like(kOp, "dgate_up", dgate_up, gate_up);
    if (on_cpu(kOp, dy)) cpu::swiglu_backward(dy, gate_up, dgate_up);
}

void gelu_forward(const Tensor& x, const Tensor& y) {
    constexpr const char* kOp = "gelu_forward";
    check_operand(kOp, "x", x);
    check_like(kOp, "y", y, x);
    if (on_cpu(kOp, x)) cpu::gelu_forward(x, y);
}

void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
    constexpr const char* kOp = "gelu_backward";
    check_operand(kOp, "x", x);
    check_like(kOp, "dy", dy, x);
    check_like(kOp, "dx", dx, x);
    if (on_cpu(kOp, x)) cpu::gelu_backward(dy, x, dx);
}

void add_in_place(const Tensor& y, const Tensor& x) {
    constexpr const char* kOp = "add_in_place";
    check_operand(kOp, "x", x);
    check_like(kOp, "y", y, x);
    if (on_cpu(kOp, x)) cpu::add_in_place(y, x);
}

}  // namespace evenkeel
