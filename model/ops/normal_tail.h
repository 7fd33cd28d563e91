// The numbers of GELU, for both back ends: the normal distribution's tail of the exact form, and the tanh form.
// Plain data only. Internal.
#pragma once

namespace evenkeel {

// For a >= 0, Phi(-a) = exp(-a^2/2) t Q(t) with t = 1 / (1 + kNormalTailSlope a). Q, highest power
// first, interpolates at the Chebyshev points of t in [0, 1]; its relative error is below 2.1e-8.
inline constexpr float kNormalTailSlope = 0.35f;
inline constexpr int kNormalTailTerms = 11;
inline constexpr float kNormalTail[kNormalTailTerms] = {
    0.02150916973f, -0.1191791623f, 0.2581203473f, -0.2514094908f, 0.08720447108f, -0.03593588904f,
    0.05036275907f, 0.08749442768f, 0.1225749755f, 0.1396285917f,  0.1396298031f};
inline constexpr float kNormalDensityAtZero = 0.398942280f;  // 1 / sqrt(2 pi)

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = x sigmoid(x (kTanhGeluLinear + kTanhGeluCubic x^2)).
inline constexpr float kTanhGeluLinear = 1.59576912f;  // 2 sqrt(2 / pi)
inline constexpr float kTanhGeluCubic = 0.0713548163f;

}  // namespace evenkeel
