// The minimum of a convex function in a box.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace evenkeel {

// Returns f(x); writes its gradient [n] and Hessian [n, n] unless they are null (both or none).
using ConvexFunction =
    std::function<double(std::span<const double> x, double* gradient, double* hessian)>;

struct BoxNewtonOptions {
    double tolerance = 1e-9;  // of the last step, relative to `scale`
    int max_iterations = 100;
    // Times the largest diagonal element of the Hessian at the start, both in units of `scale`: added to f, times
    // half the squared distance from the start.
    double ridge = 0.0;
};

struct BoxNewtonResult {
    std::vector<double> x;
    double value = 0.0;  // f(x)
    int iterations = 0;  // steps taken
    bool converged = false;
    // The Hessian at the start is singular: of all minima (nearly) the one next to the start was taken.
    bool ridged = false;
};

// Minimises f over lower <= x <= upper from `start`. Components are measured in `scale`, all positive: what counts as
// a small or a large change of each. A step minimises the quadratic model in the box (and in reach of a few times
// the scale) by active sets, then halves until the function falls as it should (Armijo 1966); by convexity this
// converges from anywhere, quadratically at the end. Where the Hessian at the start has a pivot below 1e-10 of its
// largest diagonal element (or 1e-16), 5e-9 of that times the squared distance from the start is added to f.
BoxNewtonResult minimize_in_box(const ConvexFunction& f,
                                std::span<const double> start,
                                std::span<const double> scale,
                                std::span<const double> lower,
                                std::span<const double> upper,
                                const BoxNewtonOptions& options = {});

// min over lower <= d <= upper of gradient . d + d^T hessian d / 2, hessian [n, n] symmetric and positive
// definite (a small multiple of the identity is added where it is not); lower <= 0 <= upper.
std::vector<double> minimize_quadratic_in_box(std::span<const double> gradient,
                                              std::span<const double> hessian,
                                              std::span<const double> lower,
                                              std::span<const double> upper);

}  // namespace evenkeel
