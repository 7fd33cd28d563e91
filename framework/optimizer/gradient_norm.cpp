#include "framework/optimizer/gradient_norm.h"

#include "framework/optimizer/gradient_norm_cpu.h"
#include "framework/optimizer/gradient_norm_cuda.h"

namespace evenkeel {

void chunk_sums_of_squares(const ParameterBuckets& buckets, const Tensor& sums) {
    constexpr const char* kOp = "chunk_sums_of_squares";
    check_shape(kOp, "sums", sums, {buckets.num_chunks()});
    check_dtype(kOp, "sums", sums, DType::kFloat64);
    EVENKEEL_CHECK(sums.device() == buckets.device(), kOp, "sums: got a tensor on ",
                   name_of(sums.device()), ", want ", name_of(buckets.device()));
    if (sums.numel() == 0) return;
    if (buckets.is_cut()) sums.zero();
    switch (buckets.device()) {
        case Device::kCpu:
            return cpu::chunk_sums_of_squares(buckets, sums);
        case Device::kCuda:
            return cuda::chunk_sums_of_squares(buckets, sums);
    }
}

void add_in_order(const Tensor& sums, const Tensor& total) {
    constexpr const char* kOp = "add_in_order";
    check_shape(kOp, "sums", sums, {sums.numel()});
    check_shape(kOp, "total", total, {1});
    check_dtype(kOp, "sums", sums, DType::kFloat64);
    check_dtype(kOp, "total", total, DType::kFloat64);
    EVENKEEL_CHECK(total.device() == sums.device(), kOp, "total: got a tensor on ",
                   name_of(total.device()), ", want ", name_of(sums.device()));
    if (sums.numel() == 0) return;
    switch (sums.device()) {
        case Device::kCpu:
            return cpu::add_in_order(sums, total);
        case Device::kCuda:
            return cuda::add_in_order(sums, total);
    }
}

void add_squared_gradient_norm(const ParameterBuckets& buckets, const Tensor& total) {
    const Tensor sums =
        Tensor::uninitialized({buckets.num_chunks()}, DType::kFloat64, buckets.device());
    chunk_sums_of_squares(buckets, sums);
    add_in_order(sums, total);
}

}  // namespace evenkeel
