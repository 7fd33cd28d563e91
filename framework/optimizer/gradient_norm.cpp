#include "framework/optimizer/gradient_norm.h"

#include "framework/optimizer/gradient_norm_cpu.h"
#include "framework/optimizer/gradient_norm_cuda.h"

namespace evenkeel {

void add_squared_gradient_norm(const ParameterBuckets& buckets, const Tensor& total) {
    constexpr const char* kOp = "add_squared_gradient_norm";
    check_shape(kOp, "total", total, {1});
    check_dtype(kOp, "total", total, DType::kFloat64);
    EVENKEEL_CHECK(total.device() == buckets.device(), kOp, "total: got a tensor on ",
                   name_of(total.device()), ", want ", name_of(buckets.device()));
    switch (buckets.device()) {
        case Device::kCpu:
            return cpu::add_squared_gradient_norm(buckets, total);
        case Device::kCuda:
            return cuda::add_squared_gradient_norm(buckets, total);
    }
}

}  // namespace evenkeel
