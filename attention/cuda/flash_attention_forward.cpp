#include "attention/cuda/flash_attention_forward.h"

#include "attention/cuda/flash_attention_fp32.h"

namespace evenkeel::cuda {

void flash_attention_forward(const Tensor& q,
                             const Tensor& k,
                             const Tensor& v,
                             const AttentionOptions& options,
                             const Tensor& out,
                             const Tensor& lse,
                             AttentionStats* stats) {
    const FlashCall call = make_flash_call(q, k, v, out, lse, options);
    const std::int64_t head_dim = q.size(3), rows = forward_rows(head_dim, q.dtype());
    const std::int64_t per_head = q.size(0) * ((q.size(1) + rows - 1) / rows);
    ForwardPartials partials{};
    Tensor numbers, counts;
    if (stats) {
        const std::int64_t all = q.size(2) * per_head;
        numbers =
            Tensor::uninitialized({ForwardPartials::kFloats, all}, DType::kFloat32, Device::kCuda);
        counts =
            Tensor::uninitialized({ForwardPartials::kCounts, all}, DType::kInt32, Device::kCuda);
        partials.max_score = numbers.data<float>();
        partials.entropy = partials.max_score + all;
        partials.entropy_share = partials.entropy + all;
        partials.rows = counts.data<std::int32_t>();
        partials.rows_of_two = partials.rows + all;
        partials.saturated = partials.rows_of_two + all;
    }
    if (q.dtype() == DType::kFloat32) {
        flash_forward_fp32(call.problem, partials, head_dim, call.logit_scale);
    } else {
        const auto run = head_dim <= 96 ? flash_forward_64_96 : flash_forward_128_256;
        run(call.problem, partials, head_dim, q.dtype());
    }
    if (stats) {
        reduce_forward_partials(call.problem, options.softcap, partials, per_head, *stats);
    }
}

}  // namespace evenkeel::cuda
