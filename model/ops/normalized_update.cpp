#include "model/ops/normalized_update.h"

#include <utility>

#include "model/ops/normalized_update_backends.h"

namespace evenkeel {
namespace {

void check_rows(const char* op, const Tensor& h, const std::pair<const char*, Tensor>& named) {
    const auto& [name, tensor] = named;
    check_shape(op, name, tensor, h.shape());
    check_dtype(op, name, tensor, h.dtype());
    EVENKEEL_CHECK(tensor.is_contiguous(), op, name, ": want a contiguous tensor");
    EVENKEEL_CHECK(tensor.device() == h.device(), op, name, ": got a tensor on ",
                   name_of(tensor.device()), ", want ", name_of(h.device()));
}

void check_vectors(const char* op,
                   const Tensor& h,
                   const Tensor& parameter,
                   double factor,
                   const Tensor& inverse) {
    EVENKEEL_CHECK(h.defined() && h.rank() >= 1, op, "h: got no tensor, want [.., C]");
    EVENKEEL_CHECK(h.dtype() == DType::kFloat32 || h.dtype() == DType::kBFloat16, op, "h: got ",
                   name_of(h.dtype()), ", want fp32 or bf16");
    EVENKEEL_CHECK(factor > 0.0, op, "factor: got ", factor, ", want more than 0");
    const std::int64_t C = h.size(-1);
    check_shape(op, "parameter", parameter, {C});
    check_shape(op, "inverse", inverse, {C == 0 ? 0 : h.numel() / C, 2});
    for (const Tensor& tensor : {parameter, inverse}) {
        check_dtype(op, "parameter, inverse", tensor, DType::kFloat32);
        EVENKEEL_CHECK(tensor.is_contiguous() && tensor.device() == h.device(), op,
                       "parameter, inverse: want contiguous tensors on ", name_of(h.device()));
    }
}

}  // namespace

void normalized_update_forward(const Tensor& h,
                               const Tensor& a,
                               const Tensor& parameter,
                               double factor,
                               const Tensor& y,
                               const Tensor& inverse) {
    constexpr const char* kOp = "normalized_update_forward";
    check_vectors(kOp, h, parameter, factor, inverse);
    check_rows(kOp, h, {"h", h});
    check_rows(kOp, h, {"a", a});
    check_rows(kOp, h, {"y", y});
    if (h.numel() == 0) return;
    const auto alpha_factor = static_cast<float>(factor);
    switch (h.device()) {
        case Device::kCpu:
            return cpu::normalized_update_forward(h, a, parameter, alpha_factor, y, inverse);
        case Device::kCuda:
            return cuda::normalized_update_forward(h, a, parameter, alpha_factor, y, inverse);
    }
}

void normalized_update_backward(const Tensor& dy,
                                const Tensor& h,
                                const Tensor& a,
                                const Tensor& parameter,
                                double factor,
                                const Tensor& inverse,
                                const Tensor& dh,
                                const Tensor& da,
                                const Tensor& dparameter) {
    constexpr const char* kOp = "normalized_update_backward";
    check_vectors(kOp, h, parameter, factor, inverse);
    check_vectors(kOp, h, dparameter, factor, inverse);
    check_rows(kOp, h, {"h", h});
    check_rows(kOp, h, {"a", a});
    check_rows(kOp, h, {"dy", dy});
    check_rows(kOp, h, {"dh", dh});
    check_rows(kOp, h, {"da", da});
    EVENKEEL_CHECK(da.raw() != dy.raw() && da.raw() != dh.raw(), kOp,
                   "da: got the memory of dy or dh, want its own");
    if (h.numel() == 0) return;
    const auto alpha_factor = static_cast<float>(factor);
    switch (h.device()) {
        case Device::kCpu:
            return cpu::normalized_update_backward(dy, h, a, parameter, alpha_factor, inverse, dh,
                                                   da, dparameter);
        case Device::kCuda:
            return cuda::normalized_update_backward(dy, h, a, parameter, alpha_factor, inverse, dh,
                                                    da, dparameter);
    }
}

}  // namespace evenkeel
