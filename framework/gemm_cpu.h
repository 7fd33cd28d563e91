// The CPU side of gemm, and its choice of arithmetic for bf16 operands. Internal.
#pragma once

#include "framework/gemm.h"

namespace evenkeel::cpu {

// Checked operands. c = op(a) op(b) or c += op(a) op(b).
void gemm(const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& options);

// How bf16 operands are multiplied. Products of two bf16 numbers are exact in fp32 and sums are fp32 on
// both ways; they differ in speed, and in the order of summation.
enum class Bf16Path {
    kAutomatic,
    kNative,  // dot-product instructions on bf16: AMX, and avx512_bf16 where it issues at full rate
    kWiden,  // operands copied to fp32 first: where the dot product is slower than fp32 FMA, or missing
};
void set_bf16_path(Bf16Path path);  // for tests and measurements
Bf16Path chosen_bf16_path();        // kNative or kWiden

}  // namespace evenkeel::cpu
