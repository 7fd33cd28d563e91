#include "model/ops/elementwise.h"

#include <cmath>
#include <initializer_list>

#include "model/cuda/elementwise.h"
#include "model/ops/elementwise_cpu.h"

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

// A gain or bias of x's channels.
void check_channels(const char* op, const char* name, const Tensor& channels, const Tensor& x) {
    check_shape(op, name, channels, {x.size(-1)});
    check_operand(op, name, channels);
    EVENKEEL_CHECK(channels.dtype() == DType::kFloat32 || channels.dtype() == x.dtype(), op, name,
                   ": got ", name_of(channels.dtype()), ", want fp32 or the type of x");
}

// kinds: how many statistics a row has.
void check_norm(const char* op,
                const Tensor& x,
                const Tensor& gain,
                const Tensor& statistics,
                std::int64_t kinds) {
    check_operand(op, "x", x);
    check_channels(op, "gain", gain, x);
    const std::int64_t C = x.size(-1);
    const std::int64_t rows = C == 0 ? statistics.numel() / kinds : x.numel() / C;
    if (kinds == 1) {
        check_shape(op, "rstd", statistics, {rows});
    } else {
        check_shape(op, "statistics", statistics, {kinds, rows});
    }
    check_dtype(op, "statistics", statistics, DType::kFloat32);
    EVENKEEL_CHECK(statistics.is_contiguous(), op, "statistics: want a contiguous tensor");
}

void check_forward(const char* op, const Tensor& x, double eps, const Tensor& y, double offset) {
    check_like(op, "y", y, x);
    EVENKEEL_CHECK(eps >= 0.0, op, "eps: got ", eps, ", want 0 or more");
    EVENKEEL_CHECK(std::isfinite(offset), op, "gain_offset: got ", offset,
                   ", want a finite number");
}

// The gradient of a gain or bias.
void check_sum(const char* op, const char* name, const Tensor& sum, const Tensor& gain) {
    check_shape(op, name, sum, gain.shape());
    check_dtype(op, name, sum, DType::kFloat32);
    EVENKEEL_CHECK(sum.is_contiguous(), op, name, ": want a contiguous tensor");
}

// gate_up [.., 2F] and what is made of it, or its gradient, [.., F].
void check_gated(const char* op, const Tensor& gate_up, const char* name, const Tensor& hidden) {
    check_operand(op, "gate_up", gate_up);
    EVENKEEL_CHECK(gate_up.size(-1) % 2 == 0, op, "gate_up: got width ", gate_up.size(-1),
                   ", want gate and up of one width");
    Shape half = gate_up.shape();
    half.back() /= 2;
    check_shape(op, name, hidden, half);
    check_dtype(op, name, hidden, gate_up.dtype());
    check_operand(op, name, hidden);
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

void rms_norm_forward(const Tensor& x,
                      const Tensor& gain,
                      double eps,
                      const Tensor& y,
                      const Tensor& rstd,
                      double gain_offset) {
    constexpr const char* kOp = "rms_norm_forward";
    check_norm(kOp, x, gain, rstd, 1);
    check_forward(kOp, x, eps, y, gain_offset);
    on_device(
        kOp, {&x, &gain, &y, &rstd},
        [&] { cpu::rms_norm_forward(x, gain, eps, y, rstd, gain_offset); },
        [&] { cuda::rms_norm_forward(x, gain, eps, y, rstd, gain_offset); });
}

void rms_norm_backward(const Tensor& dy,
                       const Tensor& x,
                       const Tensor& gain,
                       const Tensor& rstd,
                       bool accumulate,
                       const Tensor& dx,
                       const Tensor& dgain,
                       double gain_offset) {
    constexpr const char* kOp = "rms_norm_backward";
    check_norm(kOp, x, gain, rstd, 1);
    check_like(kOp, "dy", dy, x);
    check_like(kOp, "dx", dx, x);
    check_sum(kOp, "dgain", dgain, gain);
    on_device(
        kOp, {&x, &dy, &gain, &rstd, &dx, &dgain},
        [&] { cpu::rms_norm_backward(dy, x, gain, rstd, accumulate, dx, dgain, gain_offset); },
        [&] { cuda::rms_norm_backward(dy, x, gain, rstd, accumulate, dx, dgain, gain_offset); });
}

void layer_norm_forward(const Tensor& x,
                        const Tensor& gain,
                        const Tensor& bias,
                        double eps,
                        const Tensor& y,
                        const Tensor& statistics,
                        double gain_offset) {
    constexpr const char* kOp = "layer_norm_forward";
    check_norm(kOp, x, gain, statistics, 2);
    if (bias.defined()) check_channels(kOp, "bias", bias, x);
    check_forward(kOp, x, eps, y, gain_offset);
    on_device(
        kOp, {&x, &gain, bias.defined() ? &bias : &gain, &y, &statistics},
        [&] { cpu::layer_norm_forward(x, gain, bias, eps, y, statistics, gain_offset); },
        [&] { cuda::layer_norm_forward(x, gain, bias, eps, y, statistics, gain_offset); });
}

void layer_norm_backward(const Tensor& dy,
                         const Tensor& x,
                         const Tensor& gain,
                         const Tensor& statistics,
                         bool accumulate,
                         const Tensor& dx,
                         const Tensor& dgain,
                         const Tensor& dbias,
                         double gain_offset) {
    constexpr const char* kOp = "layer_norm_backward";
    check_norm(kOp, x, gain, statistics, 2);
    check_like(kOp, "dy", dy, x);
    check_like(kOp, "dx", dx, x);
    check_sum(kOp, "dgain", dgain, gain);
    if (dbias.defined()) check_sum(kOp, "dbias", dbias, gain);
    on_device(
        kOp, {&x, &dy, &gain, &statistics, &dx, &dgain, dbias.defined() ? &dbias : &dgain},
        [&] {
            cpu::layer_norm_backward(dy, x, gain, statistics, accumulate, dx, dgain, dbias,
                                     gain_offset);
        },
        [&] {
            cuda::layer_norm_backward(dy, x, gain, statistics, accumulate, dx, dgain, dbias,
                                      gain_offset);
        });
}

void swiglu_forward(const Tensor& gate_up, const Tensor& y) {
    constexpr const char* kOp = "swiglu_forward";
    check_gated(kOp, gate_up, "y", y);
    on_device(
        kOp, {&y, &gate_up}, [&] { cpu::swiglu_forward(gate_up, y); },
        [&] { cuda::swiglu_forward(gate_up, y); });
}

void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    constexpr const char* kOp = "swiglu_backward";
    check_gated(kOp, gate_up, "dy", dy);
    check_like(kOp, "dgate_up", dgate_up, gate_up);
    on_device(
        kOp, {&dy, &gate_up, &dgate_up}, [&] { cpu::swiglu_backward(dy, gate_up, dgate_up); },
        [&] { cuda::swiglu_backward(dy, gate_up, dgate_up); });
}

void geglu_forward(const Tensor& gate_up, const Tensor& y) {
    constexpr const char* kOp = "geglu_forward";
    check_gated(kOp, gate_up, "y", y);
    on_device(
        kOp, {&y, &gate_up}, [&] { cpu::geglu_forward(gate_up, y); },
        [&] { cuda::geglu_forward(gate_up, y); });
}

void geglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    constexpr const char* kOp = "geglu_backward";
    check_gated(kOp, gate_up, "dy", dy);
    check_like(kOp, "dgate_up", dgate_up, gate_up);
    on_device(
        kOp, {&dy, &gate_up, &dgate_up}, [&] { cpu::geglu_backward(dy, gate_up, dgate_up); },
        [&] { cuda::geglu_backward(dy, gate_up, dgate_up); });
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

void scale_in_place(const Tensor& y, double factor) {
    constexpr const char* kOp = "scale_in_place";
    check_operand(kOp, "y", y);
    on_device(
        kOp, {&y}, [&] { cpu::scale_in_place(y, factor); },
        [&] { cuda::scale_in_place(y, factor); });
}

}  // namespace evenkeel
