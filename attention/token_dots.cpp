#include "attention/token_dots.h"

#include "attention/cpu/token_dots.h"
#include "attention/cuda/token_dots.h"
#include "framework/overlap.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "token_dots";

void check_rows(const char* name, const Tensor& rows, const Tensor& like) {
    check_shape(kOp, name, rows, like.shape());
    check_dtype(kOp, name, rows, like.dtype());
    EVENKEEL_CHECK(rows.device() == like.device(), kOp, name, ": got ", name_of(rows.device()),
                   ", want ", name_of(like.device()));
    EVENKEEL_CHECK(rows.stride(3) == 1 || rows.size(3) <= 1, kOp, name, ": got stride ",
                   rows.stride(3), " between channels, want 1");
    if (rows.device() == Device::kCpu) return;
    const auto elements = 16 / static_cast<std::int64_t>(size_of(rows.dtype()));
    EVENKEEL_CHECK(reinterpret_cast<std::uintptr_t>(rows.raw()) % 16 == 0, kOp, name,
                   ": got an address that is no multiple of 16");
    EVENKEEL_CHECK(rows.size(3) % elements == 0, kOp, name, ": got ", rows.size(3),
                   " channels, want a multiple of ", elements);
    for (int dim = 0; dim < 3; ++dim) {
        EVENKEEL_CHECK(rows.size(dim) <= 1 || rows.stride(dim) % elements == 0, kOp, name,
                       ": got stride ", rows.stride(dim), " of dimension ", dim,
                       ", want a multiple of ", elements);
    }
}

}  // namespace

void token_dots(const Tensor& x, const Tensor& y, const Tensor& out) {
    EVENKEEL_CHECK(x.defined() && x.rank() == 4, kOp, "x: got ",
                   x.defined() ? to_string(x.shape()) : "no tensor", ", want [B, T, N, D]");
    const bool cpu = x.device() == Device::kCpu;
    EVENKEEL_CHECK(x.dtype() == DType::kFloat32 || x.dtype() == DType::kBFloat16 ||
                       (!cpu && x.dtype() == DType::kFloat16),
                   kOp, "x: got ", name_of(x.dtype()), ", want ",
                   cpu ? "fp32 or bf16 on cpu" : "fp32, bf16 or fp16 on cuda");
    check_rows("x", x, x);
    check_rows("y", y, x);
    check_shape(kOp, "out", out, {x.size(0), x.size(1)});
    check_dtype(kOp, "out", out, DType::kFloat32);
    EVENKEEL_CHECK(out.device() == x.device(), kOp, "out: got ", name_of(out.device()), ", want ",
                   name_of(x.device()));
    EVENKEEL_CHECK(out.is_contiguous(), kOp, "out: want a contiguous tensor");
    EVENKEEL_CHECK(!overlap(out, x) && !overlap(out, y), kOp,
                   "out: got memory of x or y, want other memory");
    if (out.numel() == 0) return;
    switch (x.device()) {
        case Device::kCpu:
            return cpu::token_dots(x, y, out);
        case Device::kCuda:
            return cuda::token_dots(x, y, out);
    }
}

}  // namespace evenkeel
