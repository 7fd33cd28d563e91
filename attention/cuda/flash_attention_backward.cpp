#include "attention/cuda/flash_attention_backward.h"

#include "attention/cuda/flash_attention_fp32.h"
#include "framework/error.h"

namespace evenkeel::cuda {

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
    const FlashCall call = make_flash_call(q, k, v, out, lse, options);
    FlashBackwardProblem problem{};
    problem.forward = call.problem;
    problem.dout = flash_rows(dout);
    problem.dq = flash_rows(dq), problem.dk = flash_rows(dk), problem.dv = flash_rows(dv);
    const std::int64_t padded = padded_queries(q.size(1));
    const Tensor rows =
        Tensor::uninitialized({q.size(0), q.size(2), 3, padded}, DType::kFloat32, Device::kCuda);
    problem.rows = rows.data<float>();
    problem.padded_queries = static_cast<int>(padded);
    const std::int64_t shares = q.size(0) * sink_shares(q.size(1));
    Tensor sink;
    if (dsink.defined()) {
        sink = Tensor::uninitialized({q.size(2), shares}, DType::kFloat32, Device::kCuda);
        problem.sink_shares = sink.data<float>();
    }
    if (q.dtype() == DType::kFloat32) {
        flash_backward_fp32(problem, q.size(3), call.logit_scale);
    } else if (q.dtype() == DType::kBFloat16) {
        flash_backward_bf16(problem, q.size(3));
    } else {
        flash_backward_fp16(problem, q.size(3));
    }
    if (dsink.defined()) {
        reduce_sink_gradient(problem.sink_shares, q.size(2), shares, dsink.data<float>());
    }
}

}  // namespace evenkeel::cuda
