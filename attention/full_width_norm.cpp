#include "attention/full_width_norm.h"

#include <algorithm>

#include "attention/cpu/full_width_norm.h"
#include "attention/cuda/full_width_norm.h"
#include "attention/token_dots.h"
#include "parallel/tensor_reduce.h"

namespace evenkeel {
namespace {

struct Replicas {
    std::int64_t count;  // ranks that hold the same key head
    bool owner;          // the first of them
};

Replicas replicas_of_keys(const ProcessGrid& grid, std::int64_t num_kv_heads) {
    const std::int64_t count = std::max<std::int64_t>(grid.tp_size() / num_kv_heads, 1);
    return {count, grid.tp_rank() % count == 0};
}

Tensor row(const Tensor& totals, std::int64_t part) {
    return totals.slice(0, part, part + 1).view({totals.size(1), totals.size(2)});
}

Tensor make_totals(const Tensor& q) {
    return Tensor::uninitialized({2, q.size(0), q.size(1)}, DType::kFloat32, q.device());
}

// totals [2, B, T]: each x becomes x / channels[part], or with eps >= 0 the inverse root of that plus eps.
void finish(const Tensor& totals, const double (&channels)[2], double eps) {
    if (totals.numel() == 0) return;
    const float factors[2] = {static_cast<float>(1.0 / channels[0]),
                              static_cast<float>(1.0 / channels[1])};
    switch (totals.device()) {
        case Device::kCpu:
            return cpu::finish_full_width(totals, factors, static_cast<float>(eps));
        case Device::kCuda:
            return cuda::finish_full_width(totals, factors, static_cast<float>(eps));
    }
}

}  // namespace

Tensor full_width_rstd(const ProcessGrid& grid,
                       const Tensor& q,
                       const Tensor& k,
                       std::int64_t num_heads,
                       std::int64_t num_kv_heads,
                       double eps) {
    const Tensor totals = make_totals(q);  // [2, B, T]
    token_dots(q, q, row(totals, 0));
    if (replicas_of_keys(grid, num_kv_heads).owner) {
        token_dots(k, k, row(totals, 1));
    } else {
        row(totals, 1).zero();
    }
    sum_partial_products(grid, totals);
    const auto D = static_cast<double>(q.size(3));
    finish(totals, {D * static_cast<double>(num_heads), D * static_cast<double>(num_kv_heads)},
           eps);
    return totals;
}

Tensor full_width_mean(const ProcessGrid& grid,
                       const Tensor& dq,
                       const Tensor& q,
                       const Tensor& dk,
                       const Tensor& k,
                       std::int64_t num_heads,
                       std::int64_t num_kv_heads) {
    const Tensor totals = make_totals(q);  // [2, B, T]
    token_dots(dq, q, row(totals, 0));
    token_dots(dk, k, row(totals, 1));
    sum_partial_products(grid, totals);
    const auto D = static_cast<double>(q.size(3));
    const std::int64_t shares = num_kv_heads * replicas_of_keys(grid, num_kv_heads).count;
    finish(totals, {D * static_cast<double>(num_heads), D * static_cast<double>(shares)}, -1.0);
    return totals;
}

}  // namespace evenkeel
