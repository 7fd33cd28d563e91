#include "attention/cuda/flash_attention_forward.h"

namespace evenkeel::cuda {

void flash_attention_forward(const Tensor& q,
                             const Tensor& k,
                             const Tensor& v,
                             const AttentionOptions& options,
                             const Tensor& out,
                             const Tensor& lse,
                             AttentionStats* stats) {
    const FlashCall call = make_flash_call(q, k, v, out, lse, options);
    const std::int64_t head_dim = q.size(3), rows = forward_rows(head_dim);
    const std::int64_t per_head = q.size(0) * ((q.size(1) + rows - 1) / rows);
    ForwardPartials partials{};
    Tensor numbers, counts;
    if (stats) {
        numbers = Tensor::uninitialized({2, q.size(2), per_head}, DType::kFloat32, Device::kCuda);
        counts = Tensor::uninitialized({q.size(2), per_head}, DType::kInt32, Device::kCuda);
        partials.max_logit = numbers.data<float>();
        partials.entropy = partials.max_logit + q.size(2) * per_head;
        partials.rows = counts.data<std::int32_t>();
    }
    const auto run = head_dim <= 96 ? flash_forward_64_96 : flash_forward_128_256;
    run(call.problem, partials, head_dim, q.dtype());
    if (stats) reduce_forward_partials(partials, q.size(2), per_head, *stats);
}

}  // namespace evenkeel::cuda
