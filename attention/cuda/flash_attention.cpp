#include "attention/cuda/flash_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "attention/cuda/flash_attention_documents.h"

namespace evenkeel::cuda {
FlashRows flash_rows(const Tensor& x) { return {x.raw(), x.stride(0), x.stride(1), x.stride(2)}; }

FlashCall make_flash_call(const Tensor& q,
                          const Tensor& k,
                          const Tensor& v,
                          const Tensor& out,
                          const Tensor& lse,
                          const AttentionOptions& options) {
    FlashCall call{};
    FlashProblem& p = call.problem;
    p.batch = static_cast<int>(q.size(0));
    p.queries = static_cast<int>(q.size(1)), p.keys = static_cast<int>(k.size(1));
    p.heads = static_cast<int>(q.size(2)), p.kv_heads = static_cast<int>(k.size(2));
    p.group = p.heads / p.kv_heads;
    const double scale = options.softmax_scale > 0.0
                             ? options.softmax_scale
                             : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
    p.scale = static_cast<float>(scale);
    // A cap so far away that fp32 knows no tanh but its argument is none.
    p.cap_scale = options.softcap > 0.0 ? static_cast<float>(scale / options.softcap) : 0.0f;
    if (p.cap_scale < std::numeric_limits<float>::min()) p.cap_scale = 0.0f;
    const double logit_scale = p.cap_scale > 0.0f ? options.softcap : scale;
    call.logit_scale = static_cast<float>(logit_scale);
    p.scale_log2 = static_cast<float>(logit_scale * std::numbers::log2e);
    if (options.sink.defined()) p.sink = options.sink.data<float>();
    p.q = flash_rows(q), p.k = flash_rows(k), p.v = flash_rows(v), p.out = flash_rows(out);
    p.lse = lse.data<float>();

    const AttentionMask& mask = options.mask;
    p.mask.queries = p.queries, p.mask.keys = p.keys;
    p.mask.causal = mask.causal;
    // No query and key are max(T, S) or more positions apart.
    p.mask.window = mask.window < std::max(p.queries, p.keys) ? static_cast<int>(mask.window) : 0;
    if (!mask.cu_seqlens.empty() && p.queries > 0) {
        call.documents = document_bounds(mask.cu_seqlens);
        p.mask.document_begin = call.documents.data<std::int32_t>();
        p.mask.document_end = p.mask.document_begin + p.queries;
    }
    return call;
}

}  // namespace evenkeel::cuda
