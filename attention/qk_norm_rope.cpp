#include "attention/qk_norm_rope.h"

#include "attention/qk_norm_rope_cpu.h"
#include "framework/dispatch.h"

namespace evenkeel {
namespace {

void check_rows(const char* op, const char* name, const Tensor& tensor, const Tensor& like) {
    check_shape(op, name, tensor, like.shape());
    check_dtype(op, name, tensor, like.dtype());
    EVENKEEL_CHECK(tensor.stride(3) == 1, op, name, ": got stride ", tensor.stride(3),
                   " between channels, want 1");
}

// What forward and backward have in common; `x` is the tensor that gives shape and type.
void check_common(const char* op,
                  const Tensor& x,
                  const Tensor& gain,
                  const RopeTable& rope,
                  const Tensor& positions,
                  const QkNormRopeOptions& options,
                  const Tensor& rstd) {
    EVENKEEL_CHECK(x.defined() && x.rank() == 4, op, "x: got ",
                   x.defined() ? to_string(x.shape()) : "no tensor", ", want [B, T, N, D]");
    const std::int64_t B = x.size(0), T = x.size(1), N = x.size(2), D = x.size(3);
    EVENKEEL_CHECK(x.dtype() != DType::kInt32, op, "x: got int32, want fp32 or bf16");
    dispatch_value<32, 64, 80, 96, 128, 192, 256>(D, op, "head width", []<int>() {});
    EVENKEEL_CHECK(options.eps >= 0.0, op, "eps: got ", options.eps, ", want 0 or more");
    check_rows(op, "x", x, x);

    if (options.norm) {
        check_shape(op, "rstd", rstd, {B, T, N});
        check_dtype(op, "rstd", rstd, DType::kFloat32);
        EVENKEEL_CHECK(rstd.is_contiguous(), op, "rstd: want a contiguous tensor");
    }
    if (gain.defined()) {
        EVENKEEL_CHECK(options.norm, op, "gain: got one without norm, want none");
        check_shape(op, "gain", gain, gain.rank() == 1 ? Shape{D} : Shape{N, D});
        check_dtype(op, "gain", gain, DType::kFloat32);
        EVENKEEL_CHECK(gain.is_contiguous(), op, "gain: want a contiguous tensor");
    }

    EVENKEEL_CHECK(rope.rotary_dim >= 0 && rope.rotary_dim <= D && rope.rotary_dim % 2 == 0, op,
                   "rotary_dim: got ", rope.rotary_dim, ", want an even number of at most ", D);
    if (positions.defined()) {
        check_shape(op, "positions", positions, {B, T});
        check_dtype(op, "positions", positions, DType::kInt32);
    }
    if (rope.rotary_dim == 0) return;
    check_shape(op, "cos", rope.cos, {rope.count, rope.rotary_dim / 2});
    check_shape(op, "sin", rope.sin, {rope.count, rope.rotary_dim / 2});
    if (!positions.defined()) {
        EVENKEEL_CHECK(T <= rope.count, op, "positions: got ", T, ", want at most the ", rope.count,
                       " of the table");
        return;
    }
    const std::int32_t* values = positions.data<std::int32_t>();
    for (std::int64_t b = 0; b < B; ++b) {
        for (std::int64_t t = 0; t < T; ++t) {
            const std::int64_t position = values[b * positions.stride(0) + t * positions.stride(1)];
            EVENKEEL_CHECK(position >= rope.first && position < rope.first + rope.count, op,
                           "position of token ", t, " of sequence ", b, ": got ", position,
                           ", want one of the table, ", rope.first, " to ",
                           rope.first + rope.count - 1);
        }
    }
}

}  // namespace

void qk_norm_rope_forward(std::span<const QkNormRopePart> parts,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options) {
    for (const QkNormRopePart& part : parts) {
        qk_norm_rope_forward(part.x, part.gain, rope, positions, options, part.y, part.rstd);
    }
}

void qk_norm_rope_backward(std::span<const QkNormRopeGradientPart> parts,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options) {
    for (const QkNormRopeGradientPart& part : parts) {
        qk_norm_rope_backward(part.dy, part.x, part.gain, part.rstd, rope, positions, options,
                              part.dx, part.dgain);
    }
}

void qk_norm_rope_forward(const Tensor& x,
                          const Tensor& gain,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options,
                          const Tensor& y,
                          const Tensor& rstd) {
    constexpr const char* kOp = "qk_norm_rope_forward";
    check_common(kOp, x, gain, rope, positions, options, rstd);
    check_rows(kOp, "y", y, x);
    EVENKEEL_CHECK(!options.norm || x.numel() == 0 || y.raw() != x.raw(), kOp,
                   "y: got x itself, which backward needs, want other memory");
    if (x.numel() == 0) return;
    switch (x.device()) {
        case Device::kCpu:
            return cpu::qk_norm_rope_forward(x, gain, rope, positions, options, y, rstd);
        case Device::kCuda:
            throw_error(ErrorCode::kNotBuilt, kOp, "no CUDA back end");
    }
}

void qk_norm_rope_backward(const Tensor& dy,
                           const Tensor& x,
                           const Tensor& gain,
                           const Tensor& rstd,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options,
                           const Tensor& dx,
                           const Tensor& dgain) {
    constexpr const char* kOp = "qk_norm_rope_backward";
    check_common(kOp, x, gain, rope, positions, options, rstd);
    check_rows(kOp, "dy", dy, x);
    check_rows(kOp, "dx", dx, x);
    EVENKEEL_CHECK(dgain.defined() == gain.defined(), kOp, "dgain: got ",
                   dgain.defined() ? "one without a gain" : "none for a gain");
    if (gain.defined()) {
        check_shape(kOp, "dgain", dgain, gain.shape());
        check_dtype(kOp, "dgain", dgain, DType::kFloat32);
        EVENKEEL_CHECK(dgain.is_contiguous(), kOp, "dgain: want a contiguous tensor");
    }
    if (x.numel() == 0) return;
    switch (x.device()) {
        case Device::kCpu:
            return cpu::qk_norm_rope_backward(dy, x, gain, rstd, rope, positions, options, dx,
                                              dgain);
        case Device::kCuda:
            throw_error(ErrorCode::kNotBuilt, kOp, "no CUDA back end");
    }
}

}  // namespace evenkeel
