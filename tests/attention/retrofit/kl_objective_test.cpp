#include "attention/retrofit/kl_objective.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/isa.h"
#include "framework/rng.h"

namespace evenkeel {
namespace {

constexpr double kNoSink = -std::numeric_limits<double>::infinity();

// One feature, keys of features phi_j for a query of 1.
std::shared_ptr<const KlKeys> keys_of(const std::vector<double>& phi) {
    const std::int64_t W = kl_width(1);
    KlKeys keys{std::vector<double>(phi.size() * static_cast<std::size_t>(2 * W), 0.0)};
    for (std::size_t j = 0; j < phi.size(); ++j) {
        keys.rows[j * static_cast<std::size_t>(2 * W)] = phi[j];
    }
    return std::make_shared<const KlKeys>(std::move(keys));
}

std::vector<double> one_query(const KlObjective& objective) {
    std::vector<double> ab(static_cast<std::size_t>(2 * objective.width()), 0.0);
    ab[0] = 1.0;
    return ab;
}

TEST(KlObjective, TwoKeysAreTheDivergenceOfTwoCoins) {
    KlObjective objective(1);
    const std::vector<double> before = {std::log(3.0), 0.0};
    objective.add(
        objective.make_row(keys_of({1.0, 0.0}), 0, one_query(objective), before, kNoSink));
    double gradient = 0.0, hessian = 0.0;
    // Heads with 3/4 for a coin of 1/2.
    const double g[] = {0.0};
    EXPECT_NEAR(objective.evaluate(g, &gradient, &hessian),
                0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-15);
    EXPECT_NEAR(gradient, 0.5 - 0.75, 1e-15);
    EXPECT_NEAR(hessian, 0.25, 1e-15);
    const double best[] = {std::log(3.0)};
    EXPECT_NEAR(objective.evaluate(best, &gradient, &hessian), 0.0, 1e-15);
    EXPECT_NEAR(gradient, 0.0, 1e-15);
    EXPECT_NEAR(hessian, 0.75 * 0.25, 1e-15);
    const auto judged = objective.judge(best), was = objective.before();
    const double entropy = -0.75 * std::log(0.75) - 0.25 * std::log(0.25);
    EXPECT_NEAR(judged.entropy_sum, entropy, 1e-15);
    EXPECT_NEAR(was.entropy_sum, entropy, 1e-15);
    EXPECT_NEAR(judged.max_logit, std::log(3.0), 1e-15);
    EXPECT_EQ(judged.entropy_rows, 1);
}

TEST(KlObjective, SinkIsAKeyOfFixedLogit) {
    // One key of logit ln 6 and a sink of ln 2: 3/4 and 1/4. With g = 1 the key's logit is 1.
    KlObjective objective(1);
    const std::vector<double> before = {std::log(6.0)};
    objective.add(
        objective.make_row(keys_of({1.0}), 0, one_query(objective), before, std::log(2.0)));
    const double g[] = {1.0}, p = std::exp(1.0) / (std::exp(1.0) + 2.0);
    double gradient = 0.0, hessian = 0.0;
    EXPECT_NEAR(objective.evaluate(g, &gradient, &hessian),
                0.75 * std::log(0.75 / p) + 0.25 * std::log(0.25 / (1.0 - p)), 1e-15);
    EXPECT_NEAR(gradient, p - 0.75, 1e-15);
    EXPECT_NEAR(hessian, p * (1.0 - p), 1e-15);
    EXPECT_NEAR(objective.before().entropy_sum, -0.75 * std::log(0.75) - 0.25 * std::log(0.25),
                1e-15);
    EXPECT_EQ(objective.before().entropy_rows, 1);
}

TEST(KlObjective, OneKeyWithoutSinkLeavesNothingToChoose) {
    KlObjective objective(1);
    objective.add(objective.make_row(keys_of({2.0}), 0, one_query(objective),
                                     std::vector<double>{7.0}, kNoSink));
    const double g[] = {3.0};
    double gradient = 1.0, hessian = 1.0;
    EXPECT_EQ(objective.evaluate(g, &gradient, &hessian), 0.0);
    EXPECT_EQ(gradient, 0.0);
    EXPECT_EQ(hessian, 0.0);
    EXPECT_EQ(objective.judge(g).entropy_rows, 0);
}

// Random rows, some with a sink, some that see part of the keys.
struct RandomObjective {
    static constexpr std::int64_t kFeatures = 5;
    KlObjective objective;

    explicit RandomObjective(double size,
                             std::int64_t features = kFeatures,
                             std::int64_t most_keys = 6)
        : objective(features) {
        const CounterRng rng(3, purpose("kl objective test"));
        std::uint64_t draw = 0;
        const std::int64_t W = objective.width();
        const std::int64_t count_of_keys = most_keys + 3;
        KlKeys keys{std::vector<double>(static_cast<std::size_t>(count_of_keys * 2 * W), 0.0)};
        const auto fill = [&](double* row) {
            for (std::int64_t f = 0; f < features; ++f) {
                row[f] = rng.normal(draw++);
                row[W + f] = rng.normal(draw++);
            }
        };
        for (std::int64_t j = 0; j < count_of_keys; ++j) fill(keys.rows.data() + j * 2 * W);
        const auto shared = std::make_shared<const KlKeys>(std::move(keys));
        for (std::int64_t r = 0; r < 40; ++r) {
            std::vector<double> ab(static_cast<std::size_t>(2 * W), 0.0);
            fill(ab.data());
            const std::int64_t first = r % 3, count = 1 + r % most_keys;
            std::vector<double> before(static_cast<std::size_t>(count));
            for (double& logit : before) logit = size * rng.normal(draw++);
            objective.add(objective.make_row(shared, first, ab, before,
                                             r % 4 == 0 ? rng.normal(draw++) : kNoSink));
        }
    }
};

TEST(KlObjective, GradientAndHessianAreThoseOfFiniteDifferences) {
    for (double size : {1.0, 20.0}) {
        const RandomObjective data(size);
        constexpr std::size_t F = RandomObjective::kFeatures;
        const std::vector<double> g = {0.4, 1.5, 0.1, 2.0, 0.9};
        std::vector<double> gradient(F), hessian(F * F), above(F), below(F), scratch(F * F);
        data.objective.evaluate(g, gradient.data(), hessian.data());
        constexpr double kStep = 1e-5;
        for (std::size_t f = 0; f < F; ++f) {
            std::vector<double> up = g, down = g;
            up[f] += kStep;
            down[f] -= kStep;
            const double slope = (data.objective.evaluate(up, above.data(), scratch.data()) -
                                  data.objective.evaluate(down, below.data(), scratch.data())) /
                                 (2 * kStep);
            EXPECT_NEAR(gradient[f], slope, 1e-8) << "feature " << f << ", logits of " << size;
            for (std::size_t k = 0; k < F; ++k) {
                EXPECT_NEAR(hessian[f * F + k], (above[k] - below[k]) / (2 * kStep), 1e-8)
                    << "features " << f << " and " << k << ", logits of " << size;
            }
        }
    }
}

TEST(KlObjective, IsConvexBetweenAnyTwoGains) {
    const RandomObjective data(3.0);
    const CounterRng rng(5, purpose("kl convexity"));
    constexpr std::size_t F = RandomObjective::kFeatures;
    std::vector<double> gradient(F), hessian(F * F);
    for (std::uint64_t pair = 0; pair < 50; ++pair) {
        std::vector<double> a(F), b(F), middle(F), v(F);
        for (std::size_t f = 0; f < F; ++f) {
            a[f] = 3.0 * rng.normal(pair * 100 + f);
            b[f] = 3.0 * rng.normal(pair * 100 + 20 + f);
            v[f] = rng.normal(pair * 100 + 40 + f);
            middle[f] = 0.5 * (a[f] + b[f]);
        }
        const double at_a = data.objective.evaluate(a, gradient.data(), hessian.data());
        const double at_b = data.objective.evaluate(b, nullptr, nullptr);
        EXPECT_LE(data.objective.evaluate(middle, nullptr, nullptr),
                  0.5 * (at_a + at_b) + 1e-14 * (at_a + at_b));
        double tangent = at_a, curvature = 0.0;
        for (std::size_t f = 0; f < F; ++f) {
            tangent += gradient[f] * (b[f] - a[f]);
            for (std::size_t k = 0; k < F; ++k) curvature += v[f] * hessian[f * F + k] * v[k];
        }
        EXPECT_GE(at_b, tangent - 1e-13 * (1.0 + std::abs(tangent)));
        EXPECT_GE(curvature, 0.0);
        EXPECT_GE(at_a, 0.0);
    }
}

TEST(KlObjective, EveryInstructionSetFindsTheSame) {
    constexpr std::int64_t kMany = 37;  // a width of 48; several blocks of the Hessian
    const std::vector<double> g(kMany, 0.3);
    struct Result {
        double value;
        std::vector<double> gradient, hessian;
    };
    std::vector<Result> results;
    for (Isa isa : kAllIsas) {
        limit_isa(isa);
        const RandomObjective data(2.0, kMany, 39);
        Result result{0.0, std::vector<double>(kMany), std::vector<double>(kMany * kMany)};
        result.value = data.objective.evaluate(g, result.gradient.data(), result.hessian.data());
        results.push_back(result);
    }
    limit_isa(Isa::kAvx512);
    // The plain sum of the gradient's differences, one direction of the Hessian.
    const RandomObjective data(2.0, kMany, 39);
    std::vector<double> above(kMany), below(kMany), scratch(kMany * kMany);
    std::vector<double> up = g, down = g;
    constexpr double kStep = 1e-5;
    for (std::size_t f = 0; f < g.size(); ++f) {
        const double along = f % 3 == 0 ? 1.0 : -0.5;
        up[f] += kStep * along;
        down[f] -= kStep * along;
    }
    data.objective.evaluate(up, above.data(), scratch.data());
    data.objective.evaluate(down, below.data(), scratch.data());
    for (const Result& result : results) {
        EXPECT_NEAR(result.value, results[0].value, 1e-13 * results[0].value);
        for (std::size_t f = 0; f < g.size(); ++f) {
            EXPECT_NEAR(result.gradient[f], results[0].gradient[f], 1e-13) << "feature " << f;
            double product = 0.0;
            for (std::size_t k = 0; k < g.size(); ++k) {
                product += result.hessian[f * g.size() + k] * (k % 3 == 0 ? 1.0 : -0.5);
            }
            EXPECT_NEAR(product, (above[f] - below[f]) / (2 * kStep), 1e-7) << "feature " << f;
        }
    }
}

TEST(KlObjective, MeanOfJudgedRowsIsTheObjective) {
    const RandomObjective data(3.0);
    const std::vector<double> g = {0.4, 1.5, 0.1, 2.0, 0.9};
    const auto judged = data.objective.judge(g);
    double mean = 0.0;
    for (double row : judged.divergence)
        mean += row / static_cast<double>(judged.divergence.size());
    EXPECT_NEAR(mean, data.objective.evaluate(g, nullptr, nullptr), 1e-14);
}

}  // namespace
}  // namespace evenkeel
