#include "attention/retrofit/box_newton.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/error.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "minimize_in_box";

// In units of the scale: what a step may change a component by, beyond which the quadratic model says little.
constexpr double kReach = 4.0;
// See BoxNewtonOptions and minimize_in_box on when a Hessian counts as singular.
constexpr double kSingular = 1e-10, kSingularFloor = 1e-16, kRidge = 1e-8;

// A = L L^T in place, lower triangle, row-major [n, n]. Returns the least pivot; stops at one that is
// not positive.
double cholesky(std::vector<double>& a, std::size_t n) {
    double least = n == 0 ? 1.0 : a[0];
    for (std::size_t i = 0; i < n; ++i) {
        double* row = a.data() + i * n;
        for (std::size_t j = 0; j <= i; ++j) {
            const double* other = a.data() + j * n;
            double sum = row[j];
            for (std::size_t k = 0; k < j; ++k) sum -= row[k] * other[k];
            if (j < i) {
                row[j] = sum / other[j];
                continue;
            }
            least = std::min(least, sum);
            if (!(sum > 0.0)) return least;
            row[i] = std::sqrt(sum);
        }
    }
    return least;
}

// Solves A x = b for symmetric A, which is lifted until it has a factor.
std::vector<double> solve(const std::vector<double>& a, std::vector<double> b) {
    const std::size_t n = b.size();
    double largest = 0.0;
    for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, a[i * n + i]);
    std::vector<double> factor = a;
    for (double lift = 0.0; cholesky(factor, n) <= 1e-15 * largest;
         lift = std::max(10.0 * lift, std::max(1e-14 * largest, 1e-300))) {
        factor = a;
        for (std::size_t i = 0; i < n; ++i) factor[i * n + i] += lift;
    }
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t k = 0; k < i; ++k) b[i] -= factor[i * n + k] * b[k];
        b[i] /= factor[i * n + i];
    }
    for (std::size_t i = n; i-- > 0;) {
        for (std::size_t k = i + 1; k < n; ++k) b[i] -= factor[k * n + i] * b[k];
        b[i] /= factor[i * n + i];
    }
    return b;
}

double dot(std::span<const double> a, std::span<const double> b) {
    double sum = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

bool is_singular(const std::vector<double>& hessian, std::size_t n, double largest) {
    std::vector<double> factor = hessian;
    return cholesky(factor, n) <= std::max(kSingular * largest, kSingularFloor);
}

// f in units of the scale, u = x / scale, with the ridge.
class Scaled {
  public:
    Scaled(const ConvexFunction& f, std::span<const double> scale) : f_(f), scale_(scale) {}

    // Adds ridge / 2 |u - centre|^2.
    void set_ridge(double ridge, const std::vector<double>& centre) {
        ridge_ = ridge;
        centre_ = centre;
    }

    double operator()(const std::vector<double>& u, double* gradient, double* hessian) const {
        const std::size_t n = u.size();
        double value = f_(unscaled(u), gradient, hessian);
        for (std::size_t i = 0; i < n && gradient != nullptr; ++i) {
            gradient[i] *= scale_[i];
            for (std::size_t k = 0; k < n; ++k) hessian[i * n + k] *= scale_[i] * scale_[k];
        }
        if (ridge_ == 0.0) return value;
        for (std::size_t i = 0; i < n; ++i) {
            const double away = u[i] - centre_[i];
            value += 0.5 * ridge_ * away * away;
            if (gradient == nullptr) continue;
            gradient[i] += ridge_ * away;
            hessian[i * n + i] += ridge_;
        }
        return value;
    }

    std::vector<double> unscaled(const std::vector<double>& u) const {
        std::vector<double> x(u.size());
        for (std::size_t i = 0; i < u.size(); ++i) x[i] = u[i] * scale_[i];
        return x;
    }

  private:
    const ConvexFunction& f_;
    std::span<const double> scale_;
    double ridge_ = 0.0;
    std::vector<double> centre_;
};

}  // namespace

std::vector<double> minimize_quadratic_in_box(std::span<const double> gradient,
                                              std::span<const double> hessian,
                                              std::span<const double> lower,
                                              std::span<const double> upper) {
    const std::size_t n = gradient.size();
    enum class State { kFree, kLower, kUpper };
    std::vector<State> state(n, State::kFree);
    std::vector<double> d(n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
        if (lower[i] == 0.0 && gradient[i] > 0.0) state[i] = State::kLower;
        if (upper[i] == 0.0 && gradient[i] < 0.0) state[i] = State::kUpper;
    }
    const auto slope = [&](std::size_t i) {
        return gradient[i] + dot(hessian.subspan(i * n, n), d);
    };
    // Every round fixes a component or reaches the least value for its set of fixed ones; sets do not
    // come twice but by rounding, which the limit ends. Whatever d is then, it lies in the box.
    for (std::size_t round = 0; round < 4 * n + 8; ++round) {
        std::vector<std::size_t> free;
        for (std::size_t i = 0; i < n; ++i) {
            if (state[i] == State::kFree) free.push_back(i);
        }
        std::vector<double> a(free.size() * free.size()), b(free.size());
        for (std::size_t r = 0; r < free.size(); ++r) {
            b[r] = -slope(free[r]);
            for (std::size_t c = 0; c < free.size(); ++c) {
                a[r * free.size() + c] = hessian[free[r] * n + free[c]];
            }
        }
        const std::vector<double> step = solve(a, b);
        double share = 1.0;
        std::size_t blocking = n;
        for (std::size_t r = 0; r < free.size(); ++r) {
            const std::size_t i = free[r];
            const double limit = step[r] < 0.0 ? lower[i] : upper[i];
            if (step[r] == 0.0 || std::abs(step[r]) * share <= std::abs(limit - d[i])) continue;
            share = std::abs(limit - d[i]) / std::abs(step[r]);
            blocking = r;
        }
        for (std::size_t r = 0; r < free.size(); ++r) {
            d[free[r]] = std::clamp(d[free[r]] + share * step[r], lower[free[r]], upper[free[r]]);
        }
        if (blocking < n) {
            const std::size_t i = free[blocking];
            state[i] = step[blocking] < 0.0 ? State::kLower : State::kUpper;
            d[i] = step[blocking] < 0.0 ? lower[i] : upper[i];
            continue;
        }
        // The fixed component that gains most by being let go.
        double most = 0.0;
        std::size_t released = n;
        for (std::size_t i = 0; i < n; ++i) {
            if (state[i] == State::kFree || lower[i] == upper[i]) continue;
            const double inward = state[i] == State::kLower ? -slope(i) : slope(i);
            if (inward > most) {
                most = inward;
                released = i;
            }
        }
        if (released == n) break;
        state[released] = State::kFree;
    }
    return d;
}

BoxNewtonResult minimize_in_box(const ConvexFunction& f,
                                std::span<const double> start,
                                std::span<const double> scale,
                                std::span<const double> lower,
                                std::span<const double> upper,
                                const BoxNewtonOptions& options) {
    const std::size_t n = start.size();
    EVENKEEL_CHECK(scale.size() == n && lower.size() == n && upper.size() == n, kOp, "box: got ",
                   scale.size(), " scales, ", lower.size(), " and ", upper.size(), " limits, want ",
                   n);
    std::vector<double> u(n), low(n), high(n);
    for (std::size_t i = 0; i < n; ++i) {
        EVENKEEL_CHECK(scale[i] > 0.0 && lower[i] <= upper[i], kOp, "component ", i,
                       ": got a scale of ", scale[i], " and limits ", lower[i], " and ", upper[i],
                       ", want a positive scale and ascending limits");
        low[i] = lower[i] / scale[i];
        high[i] = upper[i] / scale[i];
        u[i] = std::clamp(start[i] / scale[i], low[i], high[i]);
    }
    Scaled scaled(f, scale);
    std::vector<double> gradient(n), hessian(n * n);
    BoxNewtonResult result;
    double value = scaled(u, gradient.data(), hessian.data());
    double largest = 0.0;
    for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, hessian[i * n + i]);
    result.ridged = is_singular(hessian, n, largest);
    const double least = result.ridged ? std::max(kRidge * largest, kSingularFloor) : 0.0;
    const double ridge = std::max(options.ridge * largest, least);
    if (ridge > 0.0) {
        scaled.set_ridge(ridge, u);
        value = scaled(u, gradient.data(), hessian.data());
    }

    std::vector<double> near(n), far(n), next(n);
    double last_step = std::numeric_limits<double>::infinity();
    while (!result.converged && result.iterations < options.max_iterations) {
        for (std::size_t i = 0; i < n; ++i) {
            near[i] = std::max(low[i] - u[i], -kReach);
            far[i] = std::min(high[i] - u[i], kReach);
        }
        const std::vector<double> d = minimize_quadratic_in_box(gradient, hessian, near, far);
        const double slope = dot(gradient, d);
        double longest = 0.0;
        for (double component : d) longest = std::max(longest, std::abs(component));
        if (longest == 0.0) {
            result.converged = true;
            break;
        }
        // What rounding of f hides can't be searched for. Whole steps are taken then, as long as they shrink.
        const bool below_rounding = -slope <= 1e-14 * (1.0 + std::abs(value));
        if (below_rounding && longest > 0.5 * last_step) {
            result.converged = true;
            break;
        }
        last_step = below_rounding ? longest : std::numeric_limits<double>::infinity();
        double share = 1.0;
        for (;; share *= 0.5) {
            for (std::size_t i = 0; i < n; ++i) {
                next[i] = std::clamp(u[i] + share * d[i], low[i], high[i]);
            }
            if (below_rounding) break;
            if (scaled(next, nullptr, nullptr) <= value + 1e-4 * share * slope) break;
            if (share < 0x1p-60) break;  // f is not what its gradient says
        }
        if (share < 0x1p-60) break;
        u = next;
        ++result.iterations;
        result.converged = share == 1.0 && longest <= options.tolerance;
        if (!result.converged) value = scaled(u, gradient.data(), hessian.data());
    }
    result.x = scaled.unscaled(u);
    for (std::size_t i = 0; i < n; ++i) result.x[i] = std::clamp(result.x[i], lower[i], upper[i]);
    result.value = f(result.x, nullptr, nullptr);
    return result;
}

}  // namespace evenkeel
