#include "attention/flash_attention.h"

#include <initializer_list>
#include <iterator>

#include "attention/cpu/flash_attention.h"
#include "attention/cuda/flash_attention.h"
#include "attention/cuda/flash_attention_backward.h"
#include "attention/cuda/flash_attention_forward.h"
#include "framework/overlap.h"

namespace evenkeel {
namespace {

void check_device(const char* op, const char* name, const Tensor& x, const Tensor& q) {
    EVENKEEL_CHECK(x.device() == q.device(), op, name, ": got device ", name_of(x.device()),
                   ", want ", name_of(q.device()), " like q");
}

// Kernels move 16 bytes at a time.
void check_alignment(const char* op, const char* name, const Tensor& x) {
    EVENKEEL_CHECK(reinterpret_cast<std::uintptr_t>(x.raw()) % 16 == 0, op, name,
                   ": got an address that is no multiple of 16 bytes");
    for (int dim = 0; dim < x.rank() - 1; ++dim) {
        EVENKEEL_CHECK(x.size(dim) < 2 || x.stride(dim) * size_of(x.dtype()) % 16 == 0, op, name,
                       ": got a stride of ", x.stride(dim), " elements in dimension ", dim,
                       ", want a multiple of ", 16 / size_of(x.dtype()));
    }
}

// q, or a tensor of q's kind.
void check_rows(
    const char* op, const char* name, const Tensor& x, const Shape& shape, const Tensor& q) {
    check_shape(op, name, x, shape);
    check_dtype(op, name, x, q.dtype());
    check_device(op, name, x, q);
    EVENKEEL_CHECK(x.numel() == 0 || x.stride(-1) == 1, op, name, ": got a row stride of ",
                   x.stride(-1), " elements inside a row, want contiguous rows");
    if (x.device() == Device::kCuda && x.numel() > 0) check_alignment(op, name, x);
}

struct Named {
    const char* name;
    const Tensor& tensor;
};

// What is written has memory of its own.
void check_apart(const char* op,
                 std::initializer_list<Named> written,
                 std::initializer_list<Named> read) {
    const auto check = [op](const Named& x, const Named& other) {
        EVENKEEL_CHECK(!overlap(x.tensor, other.tensor), op, x.name, ": got memory of ", other.name,
                       ", want memory of its own");
    };
    for (const Named* x = written.begin(); x != written.end(); ++x) {
        for (const Named& other : read) check(*x, other);
        for (const Named* other = written.begin(); other != x; ++other) check(*x, *other);
    }
}

// Element type and head_dim, which differ by device.
void check_kernel(const char* op, const Tensor& q) {
    const std::int64_t D = q.size(3);
    if (q.device() == Device::kCuda) {
        constexpr std::int64_t kMostBlocks = 65535;  // of a grid's y and z
        EVENKEEL_CHECK(q.size(0) <= kMostBlocks && q.size(2) <= kMostBlocks, op, "q: got ",
                       q.size(0), " sequences and ", q.size(2), " heads, want at most ",
                       kMostBlocks, " of each on cuda");
        EVENKEEL_CHECK(q.dtype() == DType::kFloat32 || size_of(q.dtype()) == 2, op,
                       "q: got element type ", name_of(q.dtype()),
                       ", want fp32, bf16 or fp16 on cuda");
        EVENKEEL_CHECK(D == 64 || D == 96 || D == 128 || D == 256, op, "head_dim: got ", D,
                       ", want one of 64, 96, 128, 256 on cuda");
        return;
    }
    EVENKEEL_CHECK(q.dtype() == DType::kFloat32 || q.dtype() == DType::kBFloat16, op,
                   "q: got element type ", name_of(q.dtype()), ", want fp32 or bf16 on cpu");
    EVENKEEL_CHECK(D == 32 || D == 64 || D == 80 || D == 96 || D == 128 || D == 192 || D == 256, op,
                   "head_dim: got ", D, ", want one of 32, 64, 80, 96, 128, 192, 256 on cpu");
}

void check_mask(const char* op,
                const AttentionMask& mask,
                std::int64_t batch,
                std::int64_t queries,
                std::int64_t keys) {
    EVENKEEL_CHECK(mask.window >= 0, op, "mask.window: got ", mask.window, ", want 0 or more");
    const auto& bounds = mask.cu_seqlens;
    if (bounds.empty()) return;
    EVENKEEL_CHECK(batch == 1 && queries == keys, op, "mask.cu_seqlens: got batch ", batch, ", ",
                   queries, " queries and ", keys,
                   " keys, want batch 1 and as many keys as queries for packed documents");
    EVENKEEL_CHECK(bounds.front() == 0 && bounds.back() == queries, op,
                   "mask.cu_seqlens: got boundaries from ", bounds.front(), " to ", bounds.back(),
                   ", want from 0 to ", queries);
    for (std::size_t i = 1; i < bounds.size(); ++i) {
        EVENKEEL_CHECK(bounds[i - 1] <= bounds[i], op, "mask.cu_seqlens: got ", bounds[i],
                       " after ", bounds[i - 1], ", want ascending boundaries");
    }
}

// A number a query head.
void check_heads(const char* op, const char* name, const Tensor& x, const Tensor& q) {
    check_shape(op, name, x, {q.size(2)});
    check_dtype(op, name, x, DType::kFloat32);
    check_device(op, name, x, q);
    EVENKEEL_CHECK(x.is_contiguous(), op, name, ": want a contiguous tensor");
}

void check_inputs(const char* op,
                  const Tensor& q,
                  const Tensor& k,
                  const Tensor& v,
                  const AttentionOptions& options,
                  const Tensor& out,
                  const Tensor& lse) {
    EVENKEEL_CHECK(q.defined() && q.rank() == 4, op, "q: want a tensor [B, T, H, D]");
    EVENKEEL_CHECK(k.defined() && k.rank() == 4, op, "k: want a tensor [B, S, K, D]");
    const std::int64_t B = q.size(0), T = q.size(1), H = q.size(2), D = q.size(3);
    const std::int64_t S = k.size(1), K = k.size(2);
    EVENKEEL_CHECK(K > 0 && H > 0 && H % K == 0, op, "heads: got ", H, " query heads and ", K,
                   " key heads, want a multiple");
    check_kernel(op, q);
    EVENKEEL_CHECK(T < (1 << 30) && S < (1 << 30), op, "sequence length: got ", T, " and ", S,
                   ", want less than 2^30");
    check_rows(op, "q", q, {B, T, H, D}, q);
    check_rows(op, "k", k, {B, S, K, D}, q);
    check_rows(op, "v", v, {B, S, K, D}, q);
    check_rows(op, "out", out, {B, T, H, D}, q);
    check_shape(op, "lse", lse, {B, H, T});
    check_dtype(op, "lse", lse, DType::kFloat32);
    check_device(op, "lse", lse, q);
    EVENKEEL_CHECK(lse.is_contiguous(), op, "lse: want a contiguous tensor");
    constexpr double kLeastScale = 1e-30, kMostScale = 1e30;  // room for the logits in fp32
    const double scale = options.softmax_scale;
    EVENKEEL_CHECK(scale == 0.0 || (scale >= kLeastScale && scale <= kMostScale), op,
                   "softmax_scale: got ", scale, ", want 0 (for 1 / sqrt(D)) or a number from ",
                   kLeastScale, " to ", kMostScale);
    constexpr double kLeastCap = 1e-6, kMostCap = 1e6;
    const double cap = options.softcap;
    EVENKEEL_CHECK(cap == 0.0 || (cap >= kLeastCap && cap <= kMostCap), op, "softcap: got ", cap,
                   ", want 0 (for none) or a number from ", kLeastCap, " to ", kMostCap);
    if (options.sink.defined()) check_heads(op, "sink", options.sink, q);
    check_mask(op, options.mask, B, T, S);
}

}  // namespace

void flash_attention_forward(const Tensor& q,
                             const Tensor& k,
                             const Tensor& v,
                             const AttentionOptions& options,
                             const Tensor& out,
                             const Tensor& lse,
                             AttentionStats* stats) {
    const char* op = "flash_attention_forward";
    check_inputs(op, q, k, v, options, out, lse);
    check_apart(op, {{"out", out}}, {{"q", q}, {"k", k}, {"v", v}});
    if (stats) {
        Tensor* const all[] = {&stats->max_logit, &stats->max_logit_uncapped, &stats->entropy,
                               &stats->entropy_share, &stats->saturation};
        const Tensor table =
            Tensor::zeros({std::ssize(all), q.size(2)}, DType::kFloat32, q.device());
        for (std::int64_t i = 0; i < std::ssize(all); ++i) {
            *all[i] = table.slice(0, i, i + 1).view({q.size(2)});
        }
    }
    if (q.device() == Device::kCuda) {
        cuda::flash_attention_forward(q, k, v, options, out, lse, stats);
    } else {
        cpu::flash_attention_forward(q, k, v, options, out, lse, stats);
    }
}

void flash_attention_backward(const Tensor& q,
                              const Tensor& k,
                              const Tensor& v,
                              const Tensor& out,
                              const Tensor& lse,
                              const Tensor& dout,
                              const AttentionOptions& options,
                              const Tensor& dq,
                              const Tensor& dk,
                              const Tensor& dv,
                              const Tensor& dsink) {
    const char* op = "flash_attention_backward";
    check_inputs(op, q, k, v, options, out, lse);
    check_rows(op, "dout", dout, q.shape(), q);
    check_rows(op, "dq", dq, q.shape(), q);
    check_rows(op, "dk", dk, k.shape(), q);
    check_rows(op, "dv", dv, k.shape(), q);
    if (dsink.defined()) {
        EVENKEEL_CHECK(options.sink.defined(), op, "dsink: got one without a sink");
        check_heads(op, "dsink", dsink, q);
    }
    check_apart(op, {{"dq", dq}, {"dk", dk}, {"dv", dv}},
                {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"dout", dout}});
    if (q.device() == Device::kCuda) {
        cuda::flash_attention_backward(q, k, v, out, lse, dout, options, dq, dk, dv, dsink);
    } else {
        cpu::flash_attention_backward(q, k, v, out, lse, dout, options, dq, dk, dv, dsink);
    }
}

FlashAttentionScratch flash_attention_scratch(const FlashAttentionShape& shape) {
    if (shape.device == Device::kCpu) return cpu::flash_attention_scratch(shape);
    const auto B = static_cast<std::size_t>(shape.batch), H = static_cast<std::size_t>(shape.heads);
    const std::int64_t rows = cuda::forward_rows(shape.head_dim, shape.dtype);
    const auto tiles = static_cast<std::size_t>((shape.tokens + rows - 1) / rows);
    const auto padded = static_cast<std::size_t>(cuda::padded_queries(shape.tokens));
    const auto shares = static_cast<std::size_t>(cuda::sink_shares(shape.tokens));
    // Partial results a tile of rows; three numbers a row, and the shares in the sink's gradient.
    return {shape.telemetry ? B * H * tiles * cuda::ForwardPartials::kBytes : 0,
            B * H * (padded * 12 + (shape.sink ? shares * 4 : 0))};
}

}  // namespace evenkeel
