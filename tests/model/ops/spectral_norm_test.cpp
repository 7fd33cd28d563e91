#include "model/ops/spectral_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::on;
using testing::to_doubles;

// The matrices of a work with their memory on a device.
struct Matrices {
    std::vector<Tensor> weights, gradients, values, starts, gammas, gamma_gradients, sigmas;
    std::unique_ptr<SpectralWork> work;

    Matrices(const std::vector<Tensor>& of, Device device, DType type = DType::kFloat32) {
        std::vector<SpectralMatrix> parts;
        for (const Tensor& weight : of) {
            const auto scalar = [&] { return Tensor::full({1}, 1.0f, DType::kFloat32, device); };
            weights.push_back(on(device, weight).clone());
            gradients.push_back(Tensor::zeros(weight.shape(), DType::kFloat32, device));
            values.push_back(Tensor::zeros(weight.shape(), type, device));
            starts.push_back(Tensor::full({weight.size(0)}, 1.0f, DType::kFloat32, device));
            gammas.push_back(scalar());
            gamma_gradients.push_back(scalar());
            sigmas.push_back(scalar());
            SpectralMatrix part;
            part.weight = weights.back().data<float>();
            part.gradient = gradients.back().data<float>();
            part.value = values.back().raw();
            part.start = starts.back().data<float>();
            part.gamma = gammas.back().data<float>();
            part.gamma_gradient = gamma_gradients.back().data<float>();
            part.sigma = sigmas.back().data<float>();
            part.rows = weight.size(0);
            part.columns = weight.size(1);
            part.rows_cut = static_cast<std::int32_t>(parts.size() % 2);
            parts.push_back(part);
        }
        work = std::make_unique<SpectralWork>(parts, type, device);
    }
    void iterate(bool advance) const {
        start_iteration(*work, advance);
        continue_iteration(*work);
        finish_iteration(*work);
    }
    double sigma(std::size_t i) const { return to_doubles(sigmas[i])[0]; }
    // This matrix's part of the work's vectors.
    std::vector<double> left(std::size_t i) const {
        const SpectralMatrix& m = work->matrices()[i];
        return to_doubles(work->left().slice(0, m.left, m.left + m.rows));
    }
    std::vector<double> right(std::size_t i) const {
        const SpectralMatrix& m = work->matrices()[i];
        return to_doubles(work->right().slice(0, m.right, m.right + m.columns));
    }
};

Tensor from(const Shape& shape, const std::vector<float>& values) {
    const Tensor tensor = Tensor::uninitialized(shape, DType::kFloat32);
    std::copy(values.begin(), values.end(), tensor.data<float>());
    return tensor;
}

// H1 diag(values) H2 with two Householder reflections, so of known singular values.
Tensor with_singular_values(std::int64_t rows,
                            std::int64_t columns,
                            const std::vector<double>& values,
                            std::uint64_t seed) {
    const auto a = to_doubles(testing::gaussian({rows}, DType::kFloat32, seed));
    const auto b = to_doubles(testing::gaussian({columns}, DType::kFloat32, seed + 1));
    double aa = 0.0, bb = 0.0;
    for (double x : a) aa += x * x;
    for (double x : b) bb += x * x;
    const Tensor tensor = Tensor::uninitialized({rows, columns}, DType::kFloat32);
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) {
            double sum = 0.0;
            for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
                sum += ((r == i ? 1.0 : 0.0) - 2.0 * a[r] * a[i] / aa) * values[i] *
                       ((c == i ? 1.0 : 0.0) - 2.0 * b[c] * b[i] / bb);
            }
            tensor.data<float>()[r * columns + c] = static_cast<float>(sum);
        }
    }
    return tensor;
}

class SpectralNormTest : public ::testing::TestWithParam<Device> {};

// By hand: W = diag(3, 1), u = (1, 1): v = (3, 1) / sqrt(10), W v = (9, 1) / sqrt(10).
TEST_P(SpectralNormTest, MakesTheIterationThatOneMakesByHand) {
    const Matrices m({from({2, 2}, {3, 0, 0, 1})}, GetParam());
    m.iterate(false);
    EXPECT_NEAR(m.sigma(0), std::sqrt(8.2), 1e-6);
    EXPECT_NEAR(m.right(0)[0], 3.0 / std::sqrt(10.0), 1e-12);
    EXPECT_NEAR(m.left(0)[0], 9.0 / std::sqrt(82.0), 1e-12);
    EXPECT_NEAR(m.left(0)[1], 1.0 / std::sqrt(82.0), 1e-12);
    refresh_values(*m.work);
    EXPECT_NEAR(to_doubles(m.values[0])[0], 3.0 / std::sqrt(8.2), 1e-6);
    m.iterate(true);
    EXPECT_NEAR(to_doubles(m.starts[0])[0], 9.0 / std::sqrt(82.0), 1e-7);
    // v = (27, 1) / sqrt(730), W v = (81, 1) / sqrt(730).
    EXPECT_NEAR(m.sigma(0), std::sqrt(6562.0 / 730.0), 1e-6);
}

TEST_P(SpectralNormTest, EstimatesAtMostTheLargestSingularValueFromAnyStartAndReachesIt) {
    const std::vector<Tensor> weights = {with_singular_values(40, 9, {3.0, 1.0, 0.7, 0.1}, 1),
                                         with_singular_values(9, 70, {3.0, 1.2, 1.0}, 2),
                                         with_singular_values(33, 33, {3.0}, 3)};
    const Matrices m(weights, GetParam());
    const std::uint64_t starts = GetParam() == Device::kCpu ? 20 : 1;
    for (std::uint64_t seed = 1; seed <= starts; ++seed) {
        for (std::size_t i = 0; i < weights.size(); ++i) {
            m.starts[i].copy_from(
                testing::gaussian({weights[i].size(0)}, DType::kFloat32, 10 * seed + i));
        }
        for (int iteration = 0; iteration < 14; ++iteration) {
            m.iterate(iteration > 0);
            for (std::size_t i = 0; i < weights.size(); ++i) {
                EXPECT_LE(m.sigma(i), 3.0 * (1.0 + 3e-7)) << "matrix " << i;
            }
        }
        for (std::size_t i = 0; i < weights.size(); ++i) {
            EXPECT_NEAR(m.sigma(i) / 3.0, 1.0, 1e-6) << "matrix " << i << ", start " << seed;
        }
    }
}

TEST_P(SpectralNormTest, RoundsTheScaledWeightOnce) {
    const Tensor weight = testing::gaussian({17, 21}, DType::kFloat32, 5);
    const Matrices m({weight}, GetParam(), DType::kBFloat16);
    m.gammas[0].fill(1.7f);
    m.iterate(false);
    refresh_values(*m.work);
    const float factor = 1.7f / static_cast<float>(m.sigma(0));
    const Tensor want = Tensor::uninitialized(weight.shape(), DType::kBFloat16);
    for (std::int64_t i = 0; i < weight.numel(); ++i) {
        want.data<bfloat16>()[i] = bfloat16(factor * weight.data<float>()[i]);
    }
    EXPECT_TRUE(testing::same_bits(testing::on_cpu(m.values[0]), want));
}

// <G, gamma W / (u^T W v)> in double, with u and v as the iteration left them.
double objective(const std::vector<double>& weight,
                 double gamma,
                 const std::vector<double>& slope,
                 const std::vector<double>& u,
                 const std::vector<double>& v) {
    double sigma = 0.0, inner = 0.0;
    for (std::size_t r = 0; r < u.size(); ++r) {
        for (std::size_t c = 0; c < v.size(); ++c) {
            sigma += u[r] * weight[r * v.size() + c] * v[c];
            inner += slope[r * v.size() + c] * weight[r * v.size() + c];
        }
    }
    return gamma / sigma * inner;
}

TEST_P(SpectralNormTest, GradientsAreThoseOfFiniteDifferences) {
    const std::vector<Tensor> weights = {testing::gaussian({6, 11}, DType::kFloat32, 7),
                                         testing::gaussian({13, 5}, DType::kFloat32, 8)};
    const Matrices m(weights, GetParam());
    for (int i = 0; i < 3; ++i) m.iterate(i > 0);
    std::vector<std::vector<double>> slopes;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const Tensor slope = testing::gaussian(weights[i].shape(), DType::kFloat32, 20 + i);
        slopes.push_back(to_doubles(slope));
        m.gradients[i].copy_from(slope);
        m.gammas[i].fill(1.5f);
    }
    inner_products(*m.work);
    convert_gradients(*m.work);
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const auto u = m.left(i), v = m.right(i);
        auto weight = to_doubles(weights[i]);
        const double gamma = 1.5, h = 1e-5;
        std::vector<double> want;
        for (double& w : weight) {
            const double at = w;
            w = at + h;
            const double above = objective(weight, gamma, slopes[i], u, v);
            w = at - h;
            want.push_back((above - objective(weight, gamma, slopes[i], u, v)) / (2.0 * h));
            w = at;
        }
        EXPECT_TRUE(testing::near(m.gradients[i], want, 1e-5, 1e-6)) << "matrix " << i;
        EXPECT_NEAR(to_doubles(m.gamma_gradients[i])[0], objective(weight, 1.0, slopes[i], u, v),
                    1e-5);
    }
}

// Zhai et al. 2023, theorem 3.1.
double least_entropy(double s, double tokens) {
    const double b = std::exp(-s * std::sqrt(tokens / (tokens - 1.0)));
    const double rest = 1.0 + (tokens - 1.0) * b;
    return std::log(rest) + s * std::sqrt(tokens * (tokens - 1.0)) * b / rest;
}

TEST(EntropyBound, HasTheValuesOfTheFormula) {
    for (const auto& [s, want] : {std::pair{1.0, 2.7168}, {2.0, 2.4187}, {5.0, 0.4903}}) {
        EXPECT_NEAR(least_entropy(s, 16.0), want, 5e-5) << "s = " << s;
    }
    EXPECT_NEAR(least_entropy(10.0, 16.0), 0.00555, 5e-6);
    EXPECT_NEAR(least_entropy(5.0, 128.0), 2.8995, 5e-5);
}

// Attention over T tokens without values: softmax(X W_q^T W_k X^T / sqrt(D)), with the weights that the
// reparametrisation makes.
TEST(EntropyBound, HoldsForEveryRowOfAttentionWithReparametrisedWeights) {
    constexpr std::int64_t kTokens = 16, kWidth = 24, kHead = 8;
    for (const float gamma : {0.3f, 0.6f, 1.0f, 2.0f, 4.0f}) {
        const Matrices m({testing::gaussian({kHead, kWidth}, DType::kFloat32, 1),
                          testing::gaussian({kHead, kWidth}, DType::kFloat32, 2),
                          testing::gaussian({kTokens, kWidth}, DType::kFloat32, 3)},
                         Device::kCpu);
        m.gammas[0].fill(gamma);
        m.gammas[1].fill(gamma);
        for (int i = 0; i < 300; ++i) m.iterate(i > 0);
        refresh_values(*m.work);
        const auto wq = to_doubles(m.values[0]), wk = to_doubles(m.values[1]),
                   x = to_doubles(m.weights[2]);
        const double scale = 1.0 / std::sqrt(static_cast<double>(kHead));
        // The norm of a product is at most the product of the norms.
        const double s = gamma * gamma * m.sigma(2) * m.sigma(2) * scale;
        const auto project = [&](const std::vector<double>& w, std::int64_t token, std::int64_t d) {
            double sum = 0.0;
            for (std::int64_t c = 0; c < kWidth; ++c)
                sum += x[token * kWidth + c] * w[d * kWidth + c];
            return sum;
        };
        for (std::int64_t i = 0; i < kTokens; ++i) {
            std::vector<double> weight;
            double total = 0.0;
            for (std::int64_t j = 0; j < kTokens; ++j) {
                double logit = 0.0;
                for (std::int64_t d = 0; d < kHead; ++d) {
                    logit += project(wq, i, d) * project(wk, j, d);
                }
                weight.push_back(std::exp(logit * scale));
                total += weight.back();
            }
            double entropy = 0.0;
            for (const double w : weight) entropy -= w / total * std::log(w / total);
            EXPECT_GE(entropy, least_entropy(s, kTokens)) << "gamma " << gamma << ", row " << i;
            EXPECT_LE(entropy, std::log(static_cast<double>(kTokens)) + 1e-12);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(,
                         SpectralNormTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

}  // namespace
}  // namespace evenkeel
