#include "attention/qk_norm_rope.h"

#include <cmath>
#include <string>

#include "attention/cpu/qk_norm_rope.h"
#include "attention/cuda/qk_norm_rope.h"
#include "framework/dispatch.h"
#include "framework/overlap.h"

namespace evenkeel {
namespace {

// Names tensors in messages: "x", or "x of part 1" where a call has several parts.
class Names {
  public:
    Names(std::size_t part, std::size_t parts)
        : suffix_(parts == 1 ? "" : concat(" of part ", part)) {}
    std::string operator()(const char* name) const { return name + suffix_; }

  private:
    std::string suffix_;
};

void check_device(const char* op, const std::string& name, const Tensor& tensor, Device want) {
    EVENKEEL_CHECK(tensor.device() == want, op, name, ": got ", evenkeel::name_of(tensor.device()),
                   ", want ", evenkeel::name_of(want));
}

// The kernels take 16 bytes at a time.
void check_alignment(const char* op, const std::string& name, const Tensor& tensor) {
    if (tensor.device() != Device::kCuda || tensor.numel() == 0) return;
    constexpr std::int64_t kBytes = 16;
    const auto past = reinterpret_cast<std::uintptr_t>(tensor.raw()) % kBytes;
    EVENKEEL_CHECK(past == 0, op, name, ": got an address ", past, " bytes past a multiple of ",
                   kBytes, ", want a multiple of ", kBytes);
    const auto elements = kBytes / static_cast<std::int64_t>(size_of(tensor.dtype()));
    static constexpr const char* kDimensions[] = {"sequences", "tokens", "heads"};
    for (int dim = 0; tensor.rank() == 4 && dim < 3; ++dim) {
        EVENKEEL_CHECK(tensor.size(dim) <= 1 || tensor.stride(dim) % elements == 0, op, name,
                       ": got stride ", tensor.stride(dim), " between ", kDimensions[dim],
                       ", want a multiple of ", elements);
    }
}

void check_rows(const char* op, const std::string& name, const Tensor& tensor, const Tensor& like) {
    check_shape(op, name.c_str(), tensor, like.shape());
    check_dtype(op, name.c_str(), tensor, like.dtype());
    check_device(op, name, tensor, like.device());
    EVENKEEL_CHECK(tensor.stride(3) == 1, op, name, ": got stride ", tensor.stride(3),
                   " between channels, want 1");
    check_alignment(op, name, tensor);
}

// A contiguous fp32 tensor.
void check_floats(const char* op,
                  const std::string& name,
                  const Tensor& tensor,
                  const Shape& shape,
                  Device device) {
    check_shape(op, name.c_str(), tensor, shape);
    check_dtype(op, name.c_str(), tensor, DType::kFloat32);
    check_device(op, name, tensor, device);
    EVENKEEL_CHECK(tensor.is_contiguous(), op, name, ": want a contiguous tensor");
}

// Shape, type and device, which all parts share but for the heads; `x` of the first part stands for them.
void check_tokens(const char* op, const std::string& name, const Tensor& x) {
    EVENKEEL_CHECK(x.defined() && x.rank() == 4, op, name, ": got ",
                   x.defined() ? to_string(x.shape()) : "no tensor", ", want [B, T, N, D]");
    const bool cpu = x.device() == Device::kCpu;
    EVENKEEL_CHECK(x.dtype() == DType::kFloat32 || x.dtype() == DType::kBFloat16 ||
                       (!cpu && x.dtype() == DType::kFloat16),
                   op, name, ": got ", evenkeel::name_of(x.dtype()), ", want ",
                   cpu ? "fp32 or bf16 on cpu" : "fp32, bf16 or fp16 on cuda");
    const auto nothing = []<int>() {};
    if (cpu) {
        dispatch_value<32, 64, 80, 96, 128, 192, 256>(x.size(3), op, "head width", nothing);
    } else {
        dispatch_value<64, 96, 128, 256>(x.size(3), op, "head width", nothing);
    }
}

// What forward and backward have in common, but for what they do with each part.
void check_rotation(const char* op,
                    const Tensor& x,
                    const RopeTable& rope,
                    const Tensor& positions,
                    const QkNormRopeOptions& options) {
    const std::int64_t B = x.size(0), T = x.size(1), D = x.size(3);
    EVENKEEL_CHECK(!options.token_statistic || options.norm == QkNormKind::kRms, op,
                   "token_statistic: got one for a norm that is not rms, want rms");
    if (options.lambda.defined()) {
        EVENKEEL_CHECK(options.norm == QkNormKind::kRms && !options.token_statistic, op,
                       "lambda: got one where the norm is not rms with a statistic a head, want "
                       "none");
        check_floats(op, "lambda", options.lambda, {1}, x.device());
        if (x.device() == Device::kCpu) {
            const float lambda = *options.lambda.data<float>();
            EVENKEEL_CHECK(lambda >= 0.0f && lambda <= 1.0f, op, "lambda: got ", lambda,
                           ", want 0 to 1");
        }
    }
    EVENKEEL_CHECK(options.eps >= 0.0 && std::isfinite(options.eps), op, "eps: got ", options.eps,
                   ", want 0 or more");
    EVENKEEL_CHECK(std::isfinite(options.gain_offset), op, "gain_offset: got ", options.gain_offset,
                   ", want a finite number");
    EVENKEEL_CHECK(rope.rotary_dim >= 0 && rope.rotary_dim <= D && rope.rotary_dim % 2 == 0, op,
                   "rotary_dim: got ", rope.rotary_dim, ", want an even number of at most ", D);
    if (positions.defined()) {
        check_shape(op, "positions", positions, {B, T});
        check_dtype(op, "positions", positions, DType::kInt32);
        check_device(op, "positions", positions, x.device());
    }
    if (rope.rotary_dim == 0) return;
    check_floats(op, "cos", rope.cos, {rope.count, rope.rotary_dim / 2}, x.device());
    check_floats(op, "sin", rope.sin, {rope.count, rope.rotary_dim / 2}, x.device());
    if (!positions.defined()) {
        EVENKEEL_CHECK(T <= rope.count, op, "positions: got ", T, ", want at most the ", rope.count,
                       " of the table");
        return;
    }
    if (x.device() != Device::kCpu) return;
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

// One part, of either direction: like `first`, the first part's x, but for the number of heads.
void check_part(const char* op,
                const Names& name,
                const Tensor& first,
                const Tensor& x,
                const Tensor& gain,
                const Tensor& rstd,
                const QkNormRopeOptions& options) {
    check_tokens(op, name("x"), x);
    const std::int64_t B = x.size(0), T = x.size(1), N = x.size(2), D = x.size(3);
    EVENKEEL_CHECK(B == first.size(0) && T == first.size(1) && D == first.size(3), op, name("x"),
                   ": got ", to_string(x.shape()), ", want the tokens and width of ",
                   to_string(first.shape()));
    check_dtype(op, name("x").c_str(), x, first.dtype());
    check_device(op, name("x"), x, first.device());
    check_rows(op, name("x"), x, x);
    const bool norm = options.norm != QkNormKind::kNone;
    if (norm) {
        check_floats(op, name("rstd"), rstd, options.token_statistic ? Shape{B, T} : Shape{B, T, N},
                     x.device());
    }
    if (gain.defined()) {
        EVENKEEL_CHECK(norm, op, name("gain"), ": got one without norm, want none");
        check_floats(op, name("gain"), gain, gain.rank() == 1 ? Shape{D} : Shape{N, D}, x.device());
        check_alignment(op, name("gain"), gain);
    }
}

// Where a lane of a kernel, or a step of a loop, writes, nothing else may be read: `from` is other
// memory, or the very same rows.
void check_apart(const char* op,
                 const std::string& name,
                 const Tensor& to,
                 const std::string& from_name,
                 const Tensor& from) {
    const bool same =
        to.raw() == from.raw() && to.shape() == from.shape() && to.strides() == from.strides();
    EVENKEEL_CHECK(same || !overlap(to, from), op, name, ": got a part of the memory of ",
                   from_name, ", want other memory");
}

template <typename Part>
const Tensor& check_first(const char* op, std::span<const Part> parts) {
    EVENKEEL_CHECK(parts.size() == 1 || parts.size() == 2, op, "parts: got ", parts.size(),
                   ", want 1 or 2");
    check_tokens(op, Names(0, parts.size())("x"), parts[0].x);
    return parts[0].x;
}

}  // namespace

void qk_norm_rope_forward(std::span<const QkNormRopePart> parts,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options) {
    constexpr const char* kOp = "qk_norm_rope_forward";
    const Tensor& first = check_first(kOp, parts);
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto& [x, gain, y, rstd] = parts[i];
        const Names name(i, parts.size());
        check_part(kOp, name, first, x, gain, rstd, options);
        check_rows(kOp, name("y"), y, x);
        EVENKEEL_CHECK(options.norm == QkNormKind::kNone || x.numel() == 0 || y.raw() != x.raw(),
                       kOp, name("y"), ": got x itself, which backward needs, want other memory");
        check_apart(kOp, name("y"), y, name("x"), x);
        elements += x.numel();
    }
    if (parts.size() == 2) {
        for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
            const Names name(i, 2), other(1 - i, 2);
            EVENKEEL_CHECK(
                !overlap(parts[i].y, parts[1 - i].x) && !overlap(parts[i].y, parts[1 - i].y), kOp,
                name("y"), ": got memory of ", other("x"), " or ", other("y"),
                ", want other memory");
        }
    }
    check_rotation(kOp, first, rope, positions, options);
    if (elements == 0) return;
    switch (first.device()) {
        case Device::kCpu:
            for (const auto& [x, gain, y, rstd] : parts) {
                if (x.numel() == 0) continue;
                cpu::qk_norm_rope_forward(x, gain, rope, positions, options, y, rstd);
            }
            return;
        case Device::kCuda:
            return cuda::qk_norm_rope_forward(parts, rope, positions, options);
    }
}

void qk_norm_rope_backward(std::span<const QkNormRopeGradientPart> parts,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options) {
    constexpr const char* kOp = "qk_norm_rope_backward";
    const Tensor& first = check_first(kOp, parts);
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto& [dy, x, gain, rstd, dx, dgain, mean] = parts[i];
        const Names name(i, parts.size());
        check_part(kOp, name, first, x, gain, rstd, options);
        check_rows(kOp, name("dy"), dy, x);
        check_rows(kOp, name("dx"), dx, x);
        EVENKEEL_CHECK(dgain.defined() == gain.defined(), kOp, name("dgain"), ": got ",
                       dgain.defined() ? "one without a gain" : "none for a gain");
        if (gain.defined()) check_floats(kOp, name("dgain"), dgain, gain.shape(), x.device());
        EVENKEEL_CHECK(mean.defined() == options.token_statistic, kOp, name("mean"), ": got ",
                       mean.defined() ? "one without token_statistic" : "none for token_statistic");
        if (mean.defined()) {
            check_floats(kOp, name("mean"), mean, {x.size(0), x.size(1)}, x.device());
        }
        check_apart(kOp, name("dx"), dx, name("dy"), dy);
        check_apart(kOp, name("dx"), dx, name("x"), x);
        elements += x.numel();
    }
    if (parts.size() == 2) {
        for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
            const Names name(i, 2), other(1 - i, 2);
            EVENKEEL_CHECK(!overlap(parts[i].dx, parts[1 - i].dy) &&
                               !overlap(parts[i].dx, parts[1 - i].x) &&
                               !overlap(parts[i].dx, parts[1 - i].dx),
                           kOp, name("dx"), ": got memory of ", other("dy"), ", ", other("x"),
                           " or ", other("dx"), ", want other memory");
        }
    }
    check_rotation(kOp, first, rope, positions, options);
    if (elements == 0) return;
    switch (first.device()) {
        case Device::kCpu:
            for (const auto& [dy, x, gain, rstd, dx, dgain, mean] : parts) {
                if (x.numel() == 0) continue;
                cpu::qk_norm_rope_backward(dy, x, gain, rstd, rope, positions, options, dx, dgain,
                                           mean);
            }
            return;
        case Device::kCuda:
            return cuda::qk_norm_rope_backward(parts, rope, positions, options);
    }
}

void qk_norm_rope_forward(const Tensor& x,
                          const Tensor& gain,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options,
                          const Tensor& y,
                          const Tensor& rstd) {
    const QkNormRopePart part{x, gain, y, rstd};
    qk_norm_rope_forward({&part, 1}, rope, positions, options);
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
    const QkNormRopeGradientPart part{dy, x, gain, rstd, dx, dgain};
    qk_norm_rope_backward({&part, 1}, rope, positions, options);
}

}  // namespace evenkeel
