#include "framework/optimizer/gradient_norm_rows.h"

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

using HalfVec = float __attribute__((vector_size(kLanes * 2)));
using DoubleVec = double __attribute__((vector_size(kLanes * 4)));  // kLanes / 2 lanes

}  // namespace

double row_sum_of_squares(const float* values, std::int64_t count) {
    constexpr int kChains = 4;  // independent sums, to hide the latency of an addition
    constexpr int kWidth = kLanes / 2;
    DoubleVec sums[kChains] = {};
    std::int64_t i = 0;
    for (; i + kChains * kWidth <= count; i += kChains * kWidth) {
        for (int chain = 0; chain < kChains; ++chain) {
            HalfVec half;
            __builtin_memcpy(&half, values + i + chain * kWidth, sizeof half);
            const DoubleVec value = __builtin_convertvector(half, DoubleVec);
            sums[chain] += value * value;
        }
    }
    double sum = 0.0;
    for (; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
    for (const DoubleVec& chain : sums) {
        for (int lane = 0; lane < kWidth; ++lane) sum += chain[lane];
    }
    return sum;
}

}  // namespace evenkeel::EVENKEEL_ISA
