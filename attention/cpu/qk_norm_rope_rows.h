// The inner loops of QK-norm and RoPE, compiled once per instruction set. Plain data only: see
// cmake/EvenkeelIsa.cmake.
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

inline constexpr int kMaxHeadDim = 256;

// Rows of D contiguous elements, at base + b * batch + t * token + n * head (in elements).
struct HeadRows {
    void* base = nullptr;
    std::int64_t batch = 0, token = 0, head = 0;
};

struct QkNormRopeRows {
    bool bf16 = false;
    std::int64_t tokens = 0;  // T
    std::int64_t heads = 0;   // N
    int dim = 0;              // D
    int rotary_dim = 0;       // R
    bool interleaved = false;
    bool norm = true;
    bool centred = false;          // the row's mean comes off first (LayerNorm)
    bool past_caches = false;      // y, in whole cache lines, does not stay in the caches
    bool token_statistic = false;  // rstd and mean are inputs, one a token
    float inverse_divisor = 0.0f;  // of sums of squares: 1 / D, or 1 for unit length
    float eps = 0.0f;
    float lambda = 1.0f;  // a row is multiplied with rstd^lambda
    HeadRows x;
    HeadRows y;             // forward: result; backward: dx
    HeadRows dy;            // backward
    float* rstd = nullptr;  // [B, T, N] or [B, T]
    // [B, T, N], rstd^lambda, filled in here; null: rstd itself, with lambda 1.
    float* factor = nullptr;
    const float* mean = nullptr;  // [B, T]; backward with token_statistic
    const float* gain =
        nullptr;  // [N, D] or [D], offset added, channels as in qk_norm_rope_channel_order
    std::int64_t gain_head = 0;  // stride from head to head: D or 0
    const float* cos = nullptr;  // [positions, R/2]
    const float* sin = nullptr;
    const std::int32_t* positions = nullptr;  // [B, T]; null: t
    std::int64_t positions_batch = 0, positions_token = 0;
    std::int64_t first = 0;  // position of the table's first row, when positions are given
};

// Rows stand in registers in an order that spares shuffles: place i of the D holds channel channels[i]. It
// depends on type, width and layout only.
EVENKEEL_DECLARE_FOR_ISAS(void qk_norm_rope_channel_order(const QkNormRopeRows& rows,
                                                          std::int32_t* channels);)

// Tokens begin .. end-1 of the B*T. Backward adds the gain gradients of these tokens to dgain [N, D], in the
// order of the registers, unless it is null.
EVENKEEL_DECLARE_FOR_ISAS(void qk_norm_rope_forward_rows(const QkNormRopeRows& rows,
                                                         std::int64_t begin,
                                                         std::int64_t end);
                          void qk_norm_rope_backward_rows(const QkNormRopeRows& rows,
                                                          std::int64_t begin,
                                                          std::int64_t end,
                                                          float* dgain);)

}  // namespace evenkeel
