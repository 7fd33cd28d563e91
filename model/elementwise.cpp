#include "model/elementwise.h"

#include <initializer_list>

#include "model/cuda/elementwise.h"
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

// Calls on_cpu() or on_cuda(), or neither where there are no elements. All tensors on one device.
template <typename Cpu, typename Cuda>
void on_device(const char* op,
               std::initializer_list<const Tensor*> tensors,
               Cpu&& on_cpu,
               Cuda&& on_cuda) {
    const Tensor& first = **tensors.begin();
    for (const Tensor* tensor : tensors) {
        EVENKEEL_CHECK(tensor->device() == first.device(), op, "devices: got ",
                       name_of(first.device()), " and ", name_of(tensor->device()),
                       ", want the same");
    }
    if (first.numel() == 0) return;
    switch (first.device()) {
        case Device::kCpu:
            return on_cpu();
        case Device::kCuda:
            return on_cuda();
    }
}

}  // namespace

void rms_norm_forward(
    const Tensor& x, const Tensor& gain, double eps, const Tensor& y, const Tensor& rstd) {
    constexpr const char* kOp = "rms_norm_forward";
    check_norm(kOp, x, gain, rstd);
    check_like(kOp, "y", y, x);
    EVENKEEL_CHECK(eps >= 0.0, kOp, "eps: got ", eps, ", want 0 or more");
    on_device(
        kOp, {&x, &gain, &y, &rstd}, [&] { cpu::rms_norm_forward(x, gain, eps, y, rstd); },
        [&] { cuda::rms_norm_forward(x, gain, eps, y, rstd); });
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
    on_device(
        kOp, {&x, &dy, &gain, &rstd, &dx, &dgain},
        [&] { cpu::rms_norm_backward(dy, x, gain, rstd, accumulate, dx, dgain); },
        [&] { cuda::rms_norm_backward(dy, x, gain, rstd, accumulate, dx, dgain); });
}

void swiglu_forward(const Tensor& gate_up, const Tensor& y) {
    constexpr const char* kOp = "swiglu_forward";
    check_shape(kOp, "y", y, halved(kOp, gate_up));
    check_dtype(kOp, "y", y, gate_up.dtype());
    check_operand(kOp, "y", y);
    on_device(
        kOp, {&y, &gate_up}, [&] { cpu::swiglu_forward(gate_up, y); },
        [&] { cuda::swiglu_forward(gate_up, y); });
}

void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    constexpr const char* kOp = "swiglu_backward";
    check_shape(kOp, "dy", dy, halved(kOp, gate_up));
    check_dtype(kOp, "dy", dy, gate_up.dtype());
    check_operand(kOp, "dy", dy);
    check_like(kOp, "dgate_up", dgate_up, gate_up);
    on_device(
        kOp, {&dy, &gate_up, &dgate_up}, [&] { cpu::swiglu_backward(dy, gate_up, dgate_up); },
        [&] { cuda::swiglu_backward(dy, gate_up, dgate_up); });
}

void gelu_forward(const Tensor& x, const Tensor& y) {
    constexpr const char* kOp = "gelu_forward";
    check_operand(kOp, "x", x);
    check_like(kOp, "y", y, x);
    on_device(
        kOp, {&x, &y}, [&] { cpu::gelu_forward(x, y); }, [&] { cuda::gelu_forward(x, y); });
}

void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
    constexpr const char* kOp = "gelu_backward";
    check_operand(kOp, "x", x);
    check_like(kOp, "dy", dy, x);
    check_like(kOp, "dx", dx, x);
    on_device(
        kOp, {&x, &dy, &dx}, [&] { cpu::gelu_backward(dy, x, dx); },
        [&] { cuda::gelu_backward(dy, x, dx); });
}

void add_in_place(const Tensor& y, const Tensor& x) {
    constexpr const char* kOp = "add_in_place";
    check_operand(kOp, "x", x);
    check_like(kOp, "y", y, x);
    on_device(
        kOp, {&x, &y}, [&] { cpu::add_in_place(y, x); }, [&] { cuda::add_in_place(y, x); });
}

}  // namespace evenkeel
