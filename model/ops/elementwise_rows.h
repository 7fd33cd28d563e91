// The inner loops of the element-wise operations, compiled once per instruction set. Plain data only: see
// cmake/EvenkeelIsa.cmake. Elements are fp32, or bf16 where bf16 is true; all rows follow one another.
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

struct NormRows {
    bool bf16 = false;
    std::int64_t width = 0;
    float eps = 0.0f;
    const void* x = nullptr;      // [rows, width]
    const float* gain = nullptr;  // [width]
    float gain_offset = 0.0f;
    const float* bias = nullptr;  // [width], or none
    float* rstd = nullptr;        // [rows]
    float* mean = nullptr;        // [rows], of a LayerNorm
    void* y = nullptr;            // [rows, width]; backward: dx
    const void* dy = nullptr;     // backward
    bool accumulate = false;      // backward: dx += instead of =
};

// Rows or elements begin .. end-1. The gain gradients of these rows are added to dgain [width], those of the
// bias to dbias.
EVENKEEL_DECLARE_FOR_ISAS(
    void rms_norm_forward_rows(const NormRows& rows, std::int64_t begin, std::int64_t end);
    void rms_norm_backward_rows(
        const NormRows& rows, std::int64_t begin, std::int64_t end, float* dgain);
    void layer_norm_forward_rows(const NormRows& rows, std::int64_t begin, std::int64_t end);
    void layer_norm_backward_rows(
        const NormRows& rows, std::int64_t begin, std::int64_t end, float* dgain, float* dbias);
    // width: F, of rows of 2F in gate_up. GELU in its tanh form, or else SiLU.
    void gated_forward_rows(bool bf16,
                            bool gelu,
                            const void* gate_up,
                            void* y,
                            std::int64_t width,
                            std::int64_t begin,
                            std::int64_t end);
    void gated_backward_rows(bool bf16,
                             bool gelu,
                             const void* dy,
                             const void* gate_up,
                             void* dgate_up,
                             std::int64_t width,
                             std::int64_t begin,
                             std::int64_t end);
    void gelu_forward_range(
        bool bf16, const void* x, void* y, std::int64_t begin, std::int64_t end);
    void gelu_backward_range(
        bool bf16, const void* dy, const void* x, void* dx, std::int64_t begin, std::int64_t end);
    void add_range(bool bf16, void* y, const void* x, std::int64_t begin, std::int64_t end);
    void scale_range(bool bf16, void* y, float factor, std::int64_t begin, std::int64_t end);)

}  // namespace evenkeel
