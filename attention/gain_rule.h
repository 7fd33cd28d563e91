// How one number becomes a gain: what gain.cpp tells both back ends. Internal.
#pragma once

namespace evenkeel {

struct GainRule {
    bool exponential = false;
    float offset = 0.0f, unit = 1.0f;  // linear: offset + parameter / unit
    float largest = 0.0f;              // exponential: parameters beyond it count as it
};

}  // namespace evenkeel
