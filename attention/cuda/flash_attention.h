// What the CUDA sources of flash attention share: the problem as kernels get it, and the host
// functions behind flash_attention.h. Internal to attention/; no device code here.
//
// Every mask is an interval of visible keys per query, and both its ends never decrease from one
// query to the next (flash_attention_mask.cuh).
#pragma once

#include <cstdint>

#include "attention/flash_attention.h"
#include "framework/tensor.h"

namespace evenkeel::cuda {

// A [B, T, N, D] tensor with contiguous rows of D. Strides in elements.
struct FlashRows {
    void* data;
    std::int64_t batch, token, head;
};

struct FlashMask {
    int queries, keys;  // T, S
    bool causal;
    int window;  // 0: no limit; else less than the larger of T and S
    // [T] on the device, the document of each token: from begin on, before end. Null: one document.
    const std::int32_t* document_begin;
    const std::int32_t* document_end;
};

// By value to every kernel.
struct FlashProblem {
    int batch, queries, keys, heads, kv_heads, group;  // B, T, S, H, K, H/K
    float scale;  // softmax scale: of q k to logits before softcap
    // Of scores to logits in powers of 2. Scores are q k, or with softcap tanh(cap_scale q k).
    float scale_log2;
    float cap_scale;    // scale / softcap; 0: no softcap
    const float* sink;  // [H]; null: none
    FlashMask mask;
    FlashRows q, k, v, out;
    float* lse;  // [B, H, T], natural logarithm
};

// A checked call's problem. Holds the mask's device memory: keep it until the kernels have been
// launched.
struct FlashCall {
    FlashProblem problem;
    float logit_scale = 0.0f;  // of scores to logits
    Tensor documents;          // [2, T] int32 on the device: begin, end
};
FlashRows flash_rows(const Tensor& x);
FlashCall make_flash_call(const Tensor& q,
                          const Tensor& k,
                          const Tensor& v,
                          const Tensor& out,
                          const Tensor& lse,
                          const AttentionOptions& options);

// flash_attention.h on a GPU, arguments checked. In a build without CUDA they throw kNotBuilt.
void flash_attention_forward(const Tensor& q,
                             const Tensor& k,
                             const Tensor& v,
                             const AttentionOptions& options,
                             const Tensor& out,
                             const Tensor& lse,
                             AttentionStats* stats);
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
                              const Tensor& dsink);

}  // namespace evenkeel::cuda
