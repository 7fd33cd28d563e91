// What the telemetry of flash attention's forward kernels knows of rows. Device code only.
#pragma once

#include "attention/cuda/mma.cuh"

namespace evenkeel::cuda {

// A row whose largest probability is no less is saturated: in bf16 that is 1.
inline constexpr float kSaturated = 1.0f - 1.0f / 512;

// Over rows: one value per lane to one per warp. The last three: over rows with two or more keys.
struct RowStatistics {
    float max_score = -INFINITY;
    float entropy = 0.0f;
    int rows = 0;
    float entropy_share = 0.0f;
    int saturated = 0, rows_of_two = 0;

    __device__ __forceinline__ void add(const RowStatistics& other) {
        max_score = max_or_nan(max_score, other.max_score);
        entropy += other.entropy;
        rows += other.rows;
        entropy_share += other.entropy_share;
        saturated += other.saturated;
        rows_of_two += other.rows_of_two;
    }
    // Those of the lane whose number differs in bit `step`.
    __device__ __forceinline__ RowStatistics of_lane_across(int step) const {
        const auto across = [step](auto x) { return __shfl_xor_sync(0xffffffffu, x, step); };
        return {across(max_score),     across(entropy),   across(rows),
                across(entropy_share), across(saturated), across(rows_of_two)};
    }
};

}  // namespace evenkeel::cuda
