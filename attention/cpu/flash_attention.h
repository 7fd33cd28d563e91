// What the CPU driver (flash_attention.cpp) and the kernels (flash_attention_kernels.cpp, compiled once
// per instruction set) agree on. Internal to attention/; plain data only, see cmake/EvenkeelIsa.cmake.
//
// Every mask is an interval of visible keys per query, and both ends of it never decrease from one query to
// the next. That is all the kernels know of masks.
//
// Rows: the G = H/K query heads that share a key head are worked on together, as rows r = t G + g, so
// that packed keys and values serve the whole group.
#pragma once

#include <cstdint>

namespace evenkeel {

class Tensor;
struct AttentionOptions;
struct AttentionStats;
struct FlashAttentionScratch;
struct FlashAttentionShape;

// flash_attention.h on the CPU, arguments checked.
namespace cpu {
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
FlashAttentionScratch flash_attention_scratch(const FlashAttentionShape& shape);
}  // namespace cpu

// A [B, T, N, D] tensor with contiguous rows of D. Strides in elements.
struct FlashOperand {
    void* data;
    std::int64_t batch, token, head;
};

// What backward needs of a row: p_j = e^(scale (s_j - shift)) weight and ds_j = p_j (dp_j - delta), s = q k;
// with softcap c, s = tanh(softmax scale q k / c) and scale = c.
// As a rule shift is lse / scale and weight 1. But an fp32 lse of size n is off by up to n 2^-24, and p by that
// factor; where that is too much, shift is the row's maximum and weight 1 over the row's sum, found anew.
struct FlashRow {
    float shift, weight, delta;
};

// Telemetry: sums over the rows of one head in a block.
struct FlashSums {
    double entropy, entropy_share, saturated;
};

struct FlashProblem {
    std::int64_t batch, queries, keys, heads, kv_heads, group, head_dim;  // B, T, S, H, K, G, D
    bool bf16;                                                            // storage, else fp32
    double scale;               // softmax scale, natural units
    double softcap;             // 0: none
    const float* sink;          // [H]; null: none
    const std::int32_t* first;  // [T] visible keys are first[t] <= j < last[t]
    const std::int32_t* last;   // [T]
    FlashOperand q, k, v, out;
    float* lse;  // [B, H, T]

    float* packed_keys;  // [B K][FlashSizes::packed_keys]

    // Forward only.
    float* packed_values;  // [B K][FlashSizes::packed_values]; null: pack keys only
    // Telemetry, [B K][row blocks][G] partial results; null without.
    float* max_dot;  // largest q k in sight
    FlashSums* sums;
    const float* share_unit;  // [T] 1 / ln(keys in sight, with the sink); 0 for fewer than two

    // Backward only.
    FlashOperand dout, dq, dk, dv;
    FlashRow* rows;    // [B K][T G]
    float coarse_lse;  // beyond it (in magnitude) an fp32 lse is too coarse, and needs packed_keys
                       // and, for bf16, packed_values
    float* dq_sum;     // [B K][T G][D]
    double* dsink;     // [B K][row blocks][G] partial results; null: not wanted
    int* turn;  // [B K][row blocks] key blocks added to that block of dq_sum so far, zero at first
};

// In floats, for one problem; and the sizes of blocks, which depend on nothing but D.
struct FlashSizes {
    std::int64_t packed_keys, packed_values;                          // per key head
    std::int64_t forward_scratch, prepare_scratch, backward_scratch;  // per thread
    std::int64_t pack_block;                                          // keys packed per call
    std::int64_t block_rows;                                          // rows per call
    std::int64_t backward_keys;                                       // keys per backward call
};

// kv: index b K + (key head). Blocks count from 0.
struct FlashKernels {
    FlashSizes (*sizes)(const FlashProblem&);
    void (*pack)(const FlashProblem&, std::int64_t kv, std::int64_t block);
    void (*forward)(const FlashProblem&, std::int64_t kv, std::int64_t row_block, float* scratch);
    // Backward: rows, and zeros in dq_sum.
    void (*prepare_rows)(const FlashProblem&,
                         std::int64_t kv,
                         std::int64_t row_block,
                         float* scratch);
    // dk and dv of one key block, and its share of dq_sum. Shares are added in the order of key blocks:
    // a call waits for the earlier blocks of its kv, which must have been started before.
    void (*backward)(const FlashProblem&, std::int64_t kv, std::int64_t key_block, float* scratch);
    void (*store_dq)(const FlashProblem&, std::int64_t kv, std::int64_t row_block);
};

// The instruction sets, slowest first. Bf16Dot: AVX-512 with products of bf16 pairs, for bf16 storage.
enum class FlashPath { kBaseline, kAvx2, kAvx512, kAvx512Bf16Dot };
inline constexpr FlashPath kAllFlashPaths[] = {FlashPath::kBaseline, FlashPath::kAvx2,
                                               FlashPath::kAvx512, FlashPath::kAvx512Bf16Dot};
const char* name_of(FlashPath path);
bool flash_path_available(FlashPath path);

// The path in use: the fastest this processor has, unless the environment variable EVENKEEL_CPU_ISA names
// another (baseline, avx2, avx512, avx512_bf16), or a test has set one.
FlashPath flash_path();
void set_flash_path(FlashPath path);  // throws kConfig when the processor lacks it

// The kernels of that path for a storage type.
const FlashKernels& flash_kernels(bool bf16);

}  // namespace evenkeel
