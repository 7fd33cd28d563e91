// QK normalisation fused with rotary embedding: y = R_t( gain * u ), with u the normalised row of one
// head. Norm first, then rotation. Statistic, gain and rotation are fp32 whatever the storage type,
// with one rounding at the end. u by QkNormKind:
//   kRms        x / sqrt(mean(x^2) + eps)              (RMSNorm: Zhang and Sennrich 2019, eq. 4; on q
//                                                       and k: Wortsman et al. 2023, section 3.1)
//   kL2         x / sqrt(sum(x^2) + eps)               (Henry et al. 2020, eq. 4: unit length)
//   kLayerNorm  (x - mean(x)) / sqrt(var(x) + eps)     (Ba et al. 2016, eq. 3, without bias; on q and
//                                                       k: Dehghani et al. 2023, section 2)
// over the D channels of each head by itself. (One statistic for all heads: full_width_norm.h.)
//
// The square of a value beyond 1e19 does not fit fp32: rows whose sum of squares over- or underflows
// get theirs in double, so that every finite row keeps its direction. An infinity or NaN stays
// within its row.
//
// B batch, T positions, N heads on this rank (H/P query or K/P key heads), D head width,
// R rotary_dim.
// CPU: fp32 and bf16; D 32, 64, 80, 96, 128, 192 or 256. CUDA: fp32, bf16 and fp16; D 64, 96, 128 or 256;
// rows aligned to 16 bytes (base address and strides), gains too; work goes to the current stream.
#pragma once

#include <cstdint>
#include <span>

#include "attention/rope.h"
#include "framework/tensor.h"

namespace evenkeel {

enum class QkNormKind {
    kNone,  // rotation only, gain must be undefined ("plain" attention)
    kRms,
    kL2,
    kLayerNorm,
};

struct QkNormRopeOptions {
    QkNormKind norm = QkNormKind::kRms;
    double eps = 1e-6;         // inside the root
    double gain_offset = 0.0;  // 1 for gains stored as gain - 1
    // kRms only: one statistic a token for all its heads, which the caller has found: rstd [B, T] is an
    // input, u = x rstd, and backward gets `mean` (full_width_norm.h).
    bool token_statistic = false;
    // kRms without token_statistic only: lambda, [1] fp32 on the rows' device, from 0 to 1. Rows become
    //   y = R_t( gain * x rstd^lambda ),
    // gain being what it is at this lambda already (gain.h): with lambda 0 and gain 1 x turned, to the bit.
    //   dx = rstd^lambda ( gain z - lambda u mean(gain z u) ),  dgain_c += sum z_c x_c rstd^lambda
    // Read where the work is done, so that it may change between replays of a recorded pass. Undefined: 1.
    Tensor lambda = {};
};

// The queries or the keys of one call.
// x [B, T, N, D], any strides with contiguous rows of D (a slice of packed QKV).
// gain [N, D], or [D] shared by all heads, fp32; undefined: no gain (all ones).
// y like x, any strides; may not overlap x unless norm is kNone.
// rstd [B, T, N] fp32: 1 / root, the factor that makes u of x (or of x - mean(x)), for backward (not
// touched when norm is kNone; may then be undefined).
// A zero row gives zero, with eps 0 too. Every channel of y is written, those that do not turn
// included.
struct QkNormRopePart {
    Tensor x, gain, y, rstd;
};

// Queries and keys together (1 or 2 parts of the same B, T, D and type): on CUDA one pass over
// packed QKV by one kernel.
// positions [B, T] int32, absolute; undefined: position t is rope.first + t. All must lie inside
// the table; on CUDA, where the host does not read them, a row whose position does not becomes NaN.
// The result does not depend on the number of threads.
void qk_norm_rope_forward(std::span<const QkNormRopePart> parts,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options);

// One part.
void qk_norm_rope_forward(const Tensor& x,
                          const Tensor& gain,
                          const RopeTable& rope,
                          const Tensor& positions,
                          const QkNormRopeOptions& options,
                          const Tensor& y,
                          const Tensor& rstd);

// dx from dy (both [B, T, N, D]; dx may alias dy), x and rstd as in forward.
//   with z = R_t^T dy:  dgain_c += sum z_c u_c, and
//   kRms        dx = rstd ( gain z - u mean(gain z u) )
//   kL2         dx = rstd ( gain z - u sum(gain z u) )
//   kLayerNorm  dx = rstd ( gain z - mean(gain z) - u mean(gain z u) )
// dgain like gain, fp32, added to, in a fixed order (the same bits for any number of threads, and
// on every GPU); undefined when gain is.
// mean [B, T] fp32, with token_statistic only: what stands in place of mean(gain z u).
struct QkNormRopeGradientPart {
    Tensor dy, x, gain, rstd, dx, dgain;
    Tensor mean = {};
};

void qk_norm_rope_backward(std::span<const QkNormRopeGradientPart> parts,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options);

// One part.
void qk_norm_rope_backward(const Tensor& dy,
                           const Tensor& x,
                           const Tensor& gain,
                           const Tensor& rstd,
                           const RopeTable& rope,
                           const Tensor& positions,
                           const QkNormRopeOptions& options,
                           const Tensor& dx,
                           const Tensor& dgain);

}  // namespace evenkeel
