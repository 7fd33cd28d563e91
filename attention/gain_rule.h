// How one number becomes a gain: what gain.cpp tells both back ends.
#pragma once

namespace evenkeel {

// What smaller gains count as when a power of them is taken.
inline constexpr float kLeastGain = 0x1p-20f;

struct GainRule {
    bool exponential = false;
    float offset = 0.0f, unit = 1.0f;  // linear: offset + parameter / unit
    float largest = 0.0f;              // exponential: parameters beyond it count as it
    // On the gains' device; the gain counts as its power where this is less than 1. Null: as it is.
    const float* lambda = nullptr;
};

}  // namespace evenkeel
