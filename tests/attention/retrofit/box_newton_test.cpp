#include "attention/retrofit/box_newton.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/rng.h"

namespace evenkeel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// b . x + x^T A x / 2 with A = M M^T + lift.
struct Quadratic {
    std::size_t n;
    std::vector<double> a, b;

    Quadratic(std::size_t size, std::size_t columns, double lift, std::uint64_t seed)
        : n(size), a(size * size, 0.0), b(size) {
        const CounterRng rng(seed, purpose("box newton test"));
        for (std::size_t i = 0; i < n; ++i) {
            b[i] = rng.normal(i);
            for (std::size_t j = 0; j < n; ++j) {
                for (std::size_t m = 0; m < columns; ++m) {
                    a[i * n + j] +=
                        rng.normal(1000 + i * columns + m) * rng.normal(1000 + j * columns + m);
                }
            }
            a[i * n + i] += lift;
        }
    }
    double operator()(std::span<const double> x, double* gradient, double* hessian) const {
        double value = 0.0;
        for (std::size_t i = 0; i < n; ++i) {
            double product = 0.0;
            for (std::size_t j = 0; j < n; ++j) product += a[i * n + j] * x[j];
            value += x[i] * (b[i] + 0.5 * product);
            if (gradient != nullptr) gradient[i] = b[i] + product;
        }
        if (hessian != nullptr) std::copy(a.begin(), a.end(), hessian);
        return value;
    }
};

// No component can be moved within the box to lower f.
void expect_optimal(const Quadratic& f,
                    std::span<const double> x,
                    std::span<const double> lower,
                    std::span<const double> upper) {
    std::vector<double> gradient(f.n), hessian(f.n * f.n);
    f(x, gradient.data(), hessian.data());
    for (std::size_t i = 0; i < f.n; ++i) {
        ASSERT_GE(x[i], lower[i]) << i;
        ASSERT_LE(x[i], upper[i]) << i;
        if (x[i] > lower[i]) EXPECT_LE(gradient[i], 1e-7) << "component " << i << " could fall";
        if (x[i] < upper[i]) EXPECT_GE(gradient[i], -1e-7) << "component " << i << " could rise";
    }
}

TEST(BoxNewton, QuadraticStepsInABoxAreOptimal) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const Quadratic f(1 + seed % 17, 20, 1e-3, seed);
        const CounterRng rng(seed, purpose("boxes"));
        std::vector<double> lower(f.n), upper(f.n);
        for (std::size_t i = 0; i < f.n; ++i) {  // some of no width, some open
            lower[i] = i % 5 == 0 ? 0.0 : -0.3 * rng.uniform(i);
            upper[i] = i % 3 == 0 ? 0.0 : i % 7 == 0 ? kInfinity : 0.3 * rng.uniform(100 + i);
        }
        expect_optimal(f, minimize_quadratic_in_box(f.b, f.a, lower, upper), lower, upper);
    }
}

TEST(BoxNewton, ReachesTheMinimumOfALogisticLossFromAfar) {
    // ln(1 + e^(5 x - 500)) - p (5 x - 500): flat where it starts; the minimum is where its slope 5 (s - p) is 0.
    const double p = 0.3;
    const auto f = [&](std::span<const double> x, double* gradient, double* hessian) {
        const double z = 5.0 * x[0] - 500.0;
        const double s = 1.0 / (1.0 + std::exp(-z));
        if (gradient != nullptr) {
            gradient[0] = 5.0 * (s - p);
            hessian[0] = 25.0 * s * (1.0 - s);
        }
        return (z > 0 ? z + std::log1p(std::exp(-z)) : std::log1p(std::exp(z))) - p * z;
    };
    const double start[] = {90.0}, scale[] = {1.0}, lower[] = {0.0}, upper[] = {kInfinity};
    const auto found = minimize_in_box(f, start, scale, lower, upper);
    EXPECT_TRUE(found.converged);
    EXPECT_NEAR(found.x[0], (500.0 + std::log(p / (1.0 - p))) / 5.0, 1e-9);
}

TEST(BoxNewton, StaysAtLimitsThatTheMinimumLiesBehind) {
    const Quadratic f(12, 30, 1e-2, 4);
    const std::vector<double> start(12, 1.0), lower(12, 0.05);
    std::vector<double> upper(12, 1.5);
    upper[3] = 0.2;  // below the start
    const auto found = minimize_in_box(f, start, start, lower, upper);
    EXPECT_TRUE(found.converged);
    EXPECT_FALSE(found.ridged);
    expect_optimal(f, found.x, lower, upper);
    EXPECT_LE(found.iterations, 10);
}

TEST(BoxNewton, ARidgeHoldsToTheStartByItsShareOfTheLargestCurvature) {
    // 10/2 (x - 1)^2 + 0.01/2 (y - 1)^2 from 0, ridge 0.1 of 10: x = 10 / 11, y = 0.01 / 1.01.
    Quadratic f(2, 0, 0.0, 1);
    f.a = {10.0, 0.0, 0.0, 0.01};
    f.b = {-10.0, -0.01};
    const std::vector<double> start(2, 0.0), scale(2, 1.0), lower(2, -9.0), upper(2, 9.0);
    BoxNewtonOptions options;
    options.ridge = 0.1;
    const BoxNewtonResult held = minimize_in_box(f, start, scale, lower, upper, options);
    EXPECT_NEAR(held.x[0], 10.0 / 11.0, 1e-12);
    EXPECT_NEAR(held.x[1], 0.01 / 1.01, 1e-12);
    EXPECT_FALSE(held.ridged);
}

TEST(BoxNewton, OfManyMinimaTakesTheOneNextToTheStart) {
    // f depends on x0 + x1 alone; from (1, 1) the nearest of x0 + x1 = 5 is (2.5, 2.5). x2 counts for nothing.
    const auto f = [](std::span<const double> x, double* gradient, double* hessian) {
        const double away = x[0] + x[1] - 5.0;
        if (gradient != nullptr) {
            gradient[0] = gradient[1] = away;
            gradient[2] = 0.0;
            std::fill(hessian, hessian + 9, 0.0);
            hessian[0] = hessian[1] = hessian[3] = hessian[4] = 1.0;
        }
        return 0.5 * away * away;
    };
    const std::vector<double> ones(3, 1.0), lower(3, 0.0), upper(3, kInfinity);
    const auto found = minimize_in_box(f, ones, ones, lower, upper);
    EXPECT_TRUE(found.ridged);
    EXPECT_TRUE(found.converged);
    EXPECT_NEAR(found.x[0], 2.5, 1e-7);
    EXPECT_NEAR(found.x[1], 2.5, 1e-7);
    EXPECT_EQ(found.x[2], 1.0);
}

}  // namespace
}  // namespace evenkeel
