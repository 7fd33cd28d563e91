// The CUDA back end of model/telemetry/head_statistics.h and model/telemetry/head_weights.h, and what both devices take:
// arguments have been checked, and none is empty.
#pragma once

#include "attention/flash_attention.h"
#include "framework/tensor.h"

namespace evenkeel {

// Planes of HeadStatistics' tensors. A smallest value is kept as the largest of its negative.
constexpr std::int64_t kMaxLogitPlane = 0, kUncappedPlane = 1, kLeastQueryPlane = 2;  // of q_max
constexpr std::int64_t kEntropyPlane = 0, kSharePlane = 1, kSaturationPlane = 2,
                       kQueryPlane = 3;  // of q_sum
constexpr std::int64_t kQueryMaxPlanes = 3, kQuerySumPlanes = 4, kKeyMaxPlanes = 1,
                       kKeySumPlanes = 1;

// How the rms of a row of D channels follows from the number v that is at hand for it:
// sqrt(factor g(v) - offset), with g(v) = 1 / v^2 if `inverse`, else v.
struct RowStatistic {
    Tensor values;  // [rows, heads] or [rows, 1] for all heads, fp32, contiguous
    bool inverse = false;
    double factor = 1.0, offset = 0.0;
};

// What one layer's pass adds.
struct LayerHeads {
    AttentionStats stats;
    RowStatistic q, k;
    std::int64_t rows = 0;
};

// One layer of the planes, [planes, heads]; heads are contiguous.
struct LayerPlanes {
    Tensor q_max, q_sum, k_max, k_sum;
};

namespace cuda {

void add_head_statistics(const LayerHeads& heads, const LayerPlanes& planes);

// weight [heads D, C] fp32, contiguous; squares [heads, M] fp64: sums of squares whose sum over M is that of
// the head's rows.
void head_squares(const Tensor& weight, const Tensor& squares);

}  // namespace cuda
}  // namespace evenkeel
